"""A model for other programs: graphs, writers, small files, and a page that runs it."""
