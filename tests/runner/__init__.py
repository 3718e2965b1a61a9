"""What tests/run is made of: main.py, and one file for each stage."""
