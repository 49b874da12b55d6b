"""Test code that several folders use: fixtures' building blocks, harnesses, and readers of pages and programs."""
