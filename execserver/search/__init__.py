"""`fs/search` and `fs/glob`: ripgrep in the request's sandbox, its output as a stream of pages."""
