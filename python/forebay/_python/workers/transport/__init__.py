"""How jobs, tasks and batches travel between processes: serialisation, shared memory, messages."""
