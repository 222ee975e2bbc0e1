"""Where samples of Python datasets are made: in this process, in threads, or in worker processes under supervision."""
