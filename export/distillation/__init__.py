"""Distillation of a compiled teacher into students (`translate-trt distill`)."""
