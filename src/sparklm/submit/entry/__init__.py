"""The script for spark-submit, in a folder of its own: a script's folder comes first where Python looks for modules."""

from pathlib import Path

ENTRY_SCRIPT = Path(__file__).with_name("run_sparklm.py")
