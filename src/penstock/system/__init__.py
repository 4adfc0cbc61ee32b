"""Below everything: file calls, held directories, threads, messages."""
