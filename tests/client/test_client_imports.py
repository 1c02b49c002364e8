"""What a device's process loads before it has seen a message: each message is a process of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
import client_app
heavy = {'torch', 'pandas', 'pyarrow', 'matplotlib', 'ray', 'scipy.stats', 'scipy.sparse'}
foreign = ('fastpfrec_flwr.server', 'fastpfrec_flwr.attacks.', 'fastpfrec_flwr.audit', 'fastpfrec_flwr.baselines')
print(sorted(heavy & set(sys.modules)), sorted(n for n in sys.modules if n.startswith(foreign) and not n.endswith('.apps')))
"""


def test_neither_attacks_nor_the_server_nor_torch():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split("\n")[-2] == "[] []"
