"""What a hostile world does to the program, case by case. docs/reliability.md is the table of these cases."""
