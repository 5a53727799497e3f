"""Readers of checkpoint formats: torch, DCP, DeepSpeed, Hugging Face, safetensors and npz."""
