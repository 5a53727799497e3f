"""Devices that fail: memory that ran out, a lost CUDA context, and the host instead of a device."""
