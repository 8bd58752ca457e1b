# The program that knows Kubernetes' schemas, from PyPI.
python3 -m venv "$HOME/venv"
"$HOME/venv/bin/pip" install --quiet kubernetes-validate==1.31.0
PATH=$PATH:$HOME/venv/bin
