"""The sweep's directory: its journal, and the results read back from it as pandas frames. No torch, no ray."""
