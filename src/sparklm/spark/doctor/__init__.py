"""The pre-flight check: facts are gathered by examine.py and judged by findings.py."""
