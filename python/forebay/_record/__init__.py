"""What is recorded and told: failures, books, notices, hints."""
