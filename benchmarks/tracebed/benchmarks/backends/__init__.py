"""Backends: how an administrator changes the CPUs of a program, one module for each kind of program."""
