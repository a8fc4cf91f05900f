"""sparklm for spark-submit: `spark-submit … run_sparklm.py train CORPUS …`.

With `--outcome=ADDRESS` before the command, how it ended is written there as well, for whoever submitted it.
"""

import sys

if __name__ == "__main__":
    try:
        from sparklm.cli import main
        from sparklm.submit.outcome import run_and_tell
    except ImportError as error:
        print(
            f"sparklm: {sys.executable} on this machine cannot import sparklm ({error}); send an environment along "
            "with --archives (see 'sparklm pack'), or name a Python that has it in PYSPARK_PYTHON",
            file=sys.stderr,
        )
        sys.exit(2)
    run_and_tell(main)
