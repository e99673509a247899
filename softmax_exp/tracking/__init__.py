"""Results in MLflow: a store is opened, a sweep is sent to it as often as one likes, and links to it are given.

In: a `Sweep` and the keys under `tracking`.  Out: one run a cell, curve runs and a summary run. MLflow is imported
by nothing else, and here only when a store is opened, which takes seconds: do it in a thread beside other work.
"""

from softmax_exp.tracking.reading import read_run
from softmax_exp.tracking.sending import finish, sync
from softmax_exp.tracking.store import Store, StoreError, open_store
from softmax_exp.tracking.tracker import Tracker
from softmax_exp.tracking.views import links, newest, ui_command

__all__ = [
    "Store",
    "StoreError",
    "Tracker",
    "finish",
    "links",
    "newest",
    "open_store",
    "read_run",
    "sync",
    "ui_command",
]
