"""The only modules that import torch, and their counterparts for NumPy and for plain Python values."""
