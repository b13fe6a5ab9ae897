"""`cftdiag kernels`: the code that Inductor generates for each kind of block, kernel by kernel."""
