"""Unlearning methods, one file each in `methods`; `registry` lists their names and needs."""
