"""The report of a sweep: tables, figures, one page of HTML and one of Markdown. No torch, no ray: it opens on a laptop."""
