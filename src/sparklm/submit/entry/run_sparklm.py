"""sparklm for spark-submit: `spark-submit … run_sparklm.py train CORPUS …`."""

import sys

if __name__ == "__main__":
    try:
        from sparklm.cli import main
    except ImportError as error:
        print(
            f"sparklm: {sys.executable} on this machine cannot import sparklm ({error}); send an environment along "
            "with --archives (see 'sparklm pack'), or name a Python that has it in PYSPARK_PYTHON",
            file=sys.stderr,
        )
        sys.exit(2)
    main()
