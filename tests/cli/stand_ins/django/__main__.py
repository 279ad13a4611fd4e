"""Stands in for `python -m django bootstrap|worker`, to test the supervisor alone. Files in the data
folder say how it is to behave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

data = Path(os.environ["LEASEHUB_DATA"])
if sys.argv[1] == "bootstrap":
    if (data / "wrong_setting").exists():
        print("Traceback (most recent call last):", file=sys.stderr)
        print("django.core.exceptions.ImproperlyConfigured: LEASEHUB_X must be a number.", file=sys.stderr)
        sys.exit(1)
    if (data / "broken").exists():
        sys.exit("CommandError: the disk is full")
    url = sys.argv[sys.argv.index("--url") + 1]
    facts = {"organization": "main", "principal": "admin", "admin_user": "admin"}
    if (data / "set_up_elsewhere").exists():
        facts = dict.fromkeys((*facts, "credentials"))
    else:
        facts["credentials"] = str(data / "credentials.json")
    print(json.dumps({"url": url, **facts, "first_run": facts["credentials"] is not None}))
else:
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with (data / "started").open("a") as started:
        started.write(f"{os.getpid()} {grandchild.pid}\n")
    (data / "words").write_text(f"{' '.join(sys.argv[1:])}\n")
    if (data / "dies").exists():
        sys.exit(5)
    if (data / "stubborn").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
