"""The policies, one module each (a family with one knob is one module)."""
