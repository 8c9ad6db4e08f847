"""Entry point. A build that has nothing to do must not pay for importing click, jinja2, pydantic or the SDK."""

from __future__ import annotations

import sys


def main() -> int:
    from strix_finetune import fast

    code = fast.repeat(sys.argv[1:])
    if code is not None:
        return code
    import signal

    # a terminated driver ends like an interrupted one: containers are removed, services stopped
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from strix_finetune import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
