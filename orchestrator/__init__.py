"""Find, per workload, whether speculative decoding pays on a CPU fleet, and with which setting."""
