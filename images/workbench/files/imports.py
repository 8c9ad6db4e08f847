"""Import what a server and a kernel import, so that its byte code is in the image."""

import sys

import ipykernel.inprocess
import ipykernel.ipkernel
import ipykernel.kernelapp
import jupyterlab.labapp
import jupyter_lsp
import jupyter_server.services.contents.largefilemanager
import jupyter_server_terminals
import matplotlib_inline.backend_inline
import nbclient
import nbconvert
import notebook_shim
import strix_train.environment
from IPython.core.interactiveshell import InteractiveShell

InteractiveShell.instance().run_cell("1 + 1")
sys.stdout.flush()
