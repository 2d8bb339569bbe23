"""Worker processes that have TVM loaded: ``pool`` and ``protocol`` are the client's side, the rest runs inside."""
