# Options for machines whose containers may make no cgroups of version 2 and raise no limit, as those
# of CI. A reader needs none of them.
mkdir -p "$HOME/.config/containers" "$HOME/run"
cat >"$HOME/.config/containers/containers.conf" <<'END'
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
END
export CONTAINERS_CONF=$HOME/.config/containers/containers.conf XDG_RUNTIME_DIR=$HOME/run
alias podman='podman --root "$HOME/images" --runroot "$HOME/run"'
shopt -s expand_aliases
