"""Records and reports: failures, books, notices, hints."""
