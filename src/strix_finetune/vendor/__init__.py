"""All inputs of a lock in one folder: made once with a network (`vendor DIR`), built from without (`build --offline`).

The folder is a mirror that any web server can serve, and `vendor.json` in it says of every file what it is:

    apt/<suite>-<date>-<digest>/    dists/ as the archive signed it, and of pool/ what the layers install
    wheels/<index>/<project>/       wheels and a page for each project; `python` is the index of Python packages
    archives/<sha256>/<file>        files that layers build from
    images/<host>/<path>/           registry images, each an OCI layout

Only the lock and the archive's signatures are believed, not `vendor.json`: a build from the folder checks every file
against them.
"""
