# The program that knows Kubernetes' schemas, from PyPI. It is kept for the next run.
name=kubernetes-validate
version=1.31.0
venv=$kept/$name-$version
if [ ! -e "$venv/bin/$name" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "$name==$version"
fi
PATH=$PATH:$venv/bin
