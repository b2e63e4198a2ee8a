"""Receipts: built, verified, and shown as a page."""
