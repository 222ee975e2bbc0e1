"""Where samples are made: worker processes and the server that forks them, threads, or the caller itself."""
