"""Suites of tests that any store, searcher or scheduler must pass, one's own included: subclass one in your own tests."""
