def context_parallel(*a, **k): raise NotImplementedError
