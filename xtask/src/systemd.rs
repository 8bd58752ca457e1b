//! `cargo x systemd`: the units under a real systemd. The commands of docs/systemd.md run as they
//! stand there, in a bare Debian with the package; the cases judge what the page promises.

mod machine;
mod page;

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools::{self, tool};
use crate::{bare, dist};
use anyhow::{Context, Result, ensure};
use machine::Machine;
use nix::unistd::Uid;
use page::Page;
use std::fs;
use std::io::Read;
use std::time::Duration;

const PAGE: &str = include_str!("../../docs/systemd.md");

/// Typed where the page adds a passphrase.
const TYPED: &str = "a passphrase that is kept elsewhere\n";

/// Words of the scripts below. `fill SERVICE EXPORT` writes a disk and keeps the data in a file,
/// and `same` reads the disk and compares. `within SERVICE` runs a command as the user of a
/// service, with its view of the file system.
const WORDS: &str = r#"
uri() { echo "nbd+unix:///${2:-disk}?socket=/run/blockyard/$1.sock"; }
file() { echo "$1-${2:-disk}"; }
fill() {
    head -c 32M /dev/urandom >"$(file "$@")"
    nbdcopy "$(file "$@")" "$(uri "$@")"
}
same() { nbdcopy "$(uri "$@")" - | head -c 32M | cmp - "$(file "$@")"; }
pid() { systemctl show --value --property MainPID "blockyard@$1"; }
user() { grep '^Uid:' "/proc/$(pid "$1")/status" | cut -f 2; }
as() { of=$1; shift; setpriv --reuid "$of" --regid "$of" --clear-groups "$@"; }
within() { of=$1; shift; nsenter --mount --target "$(pid "$of")" \
    setpriv --reuid "$(user "$of")" --regid "$(user "$of")" --clear-groups "$@"; }
fails() { if "$@"; then echo "this must fail: $*" >&2; exit 1; fi; }
"#;

/// Each service reads its own image and key, and nothing of the other one.
const SEPARATE: &str = r#"
one() {
    key=$(systemd-creds decrypt "/etc/blockyard/keys/$1.key" -)
    test "$key" = "$(within "$1" cat "/run/credentials/blockyard@$1.service/$1.key")"
    within "$1" test -w "/var/lib/blockyard/$1/disk.img"
    test "$(user "$1")" != "$(user "$2")"
    as "$(user "$1")" true
    for command in within as; do
        for place in "/run/credentials/blockyard@$2.service/$2.key" "/run/blockyard/$2/control" \
            "/var/lib/blockyard/$2/disk.img" "/etc/blockyard/keys/$2.key"; do
            test -e "$place"
            who=$1
            test "$command" = within || who=$(user "$1")
            fails "$command" "$who" test -r "$place"
        done
    done
    kill -0 "$(pid "$2")"
    fails as "$(user "$1")" sh -c "kill -0 $(pid "$2")"
    fails within "$1" nbdinfo --size "$(uri "$2")"
}
one home work
one work home
"#;

/// The keys of all services and of the user, in the places that others may read or keep.
const NO_KEY: &str = r#"
cd /run
cat /home/anna/.config/blockyard/notes.key >keys
for name in home archive work; do
    echo
    systemd-creds decrypt "/etc/blockyard/keys/$name.key" -
done >>keys
test "$(grep -c . keys)" = 4
journalctl --output export >said
systemctl show '*' >>said
cat /home/anna/properties >>said
cat /proc/*/cmdline /proc/*/environ >>said 2>/dev/null || :
grep --text --quiet 'serving /var/lib/blockyard/work/disk.img' said
grep --text --quiet LoadCredentialEncrypted said
fails grep --text --fixed-strings --file keys said
fails grep --recursive --text --fixed-strings --file keys /etc /var /run/log
rm keys said
"#;

/// The start of the server waits for another process.
const GATE: &str = r#"
mkfifo /run/down /run/up
mkdir -p /run/systemd/system/blockyard@home.service.d
cat >/run/systemd/system/blockyard@home.service.d/gate.conf <<'END'
[Service]
ExecStartPre=+/bin/sh -c 'echo >/run/down; read line </run/up'
END
systemctl daemon-reload
systemctl restart --no-block blockyard@home
read -r line </run/down
"#;

const OPEN_GATE: &str = "
echo >/run/up
rm /run/down /run/up /run/systemd/system/blockyard@home.service.d/gate.conf
systemctl daemon-reload
";

/// A new export with the key of another one, then a mistake.
const RELOAD: &str = r#"
blockyard format /var/lib/blockyard/home/third.img --size 64M --pbkdf pbkdf2 \
    --pbkdf-force-iterations 1000 --key-command 'systemd-creds decrypt /etc/blockyard/keys/home.key'
chown --reference=/var/lib/blockyard/home/ /var/lib/blockyard/home/third.img
cat >>/etc/blockyard/home.toml <<'END'

[exports.third]
volume = "/var/lib/blockyard/home/third.img"
key_credential = "home.key"
END
before=$(pid home)
systemctl reload blockyard@home
nbdinfo --size "$(uri home third)"
cp /etc/blockyard/home.toml good.toml
echo mistake >>/etc/blockyard/home.toml
fails systemctl reload blockyard@home
same home
cp good.toml /etc/blockyard/home.toml
systemctl reload blockyard@home
test "$before" = "$(pid home)"
"#;

/// The service fails with another key. The key is mended, but not the service.
const WRONG_KEY: &str = r#"
cd /etc/blockyard/keys
cp work.key good.key
printf wrong | systemd-creds encrypt --name=work.key - work.key
systemctl stop blockyard@work.service
fails nbdinfo --size "$(uri work)"
systemctl is-failed blockyard@work.socket
journalctl --unit blockyard@work | grep 'no keyslot opens'
mv good.key work.key
"#;

/// A member of the group of the drop-in, and another user.
const MEMBERS: &str = r#"
useradd --create-home --groups users anna
useradd bob
look() { setpriv --reuid "$1" --regid "$1" --init-groups nbdinfo --size "$(uri home)"; }
look anna
fails look bob
"#;

pub(crate) fn run() -> Result<()> {
    ensure!(Uid::effective().is_root(), "systemd-nspawn needs root: run cargo x systemd as root");
    let lab = Lab::new()?;
    let root = lab.disk().join("root");
    bare::unpack(bare::BOOKWORM, &root)?;
    fs::copy(dist::debian_package()?, root.join("blockyard.deb"))?;
    tools::run(tool("chroot").arg(&root).args(["dpkg", "--install", "/blockyard.deb"]))?;
    let page = Page::of(PAGE);
    let mut cases = Cases::new(None);
    let machine = Machine::start(&lab, &root, TYPED)?;
    let systemd = Systemd { machine, page: &page };
    systemd.disks(&mut cases);
    systemd.service(&mut cases);
    systemd.users(&mut cases);
    cases.run("no key is in the journal, in properties of units or on the disk", || {
        systemd.script(NO_KEY)
    });
    cases.run("the page has no other command", || page.all_were_taken().map(|()| String::new()));
    systemd.machine.power_off()?;
    let machine = Machine::start(&lab, &root, TYPED)?;
    Systemd { machine, page: &page }.second_boot(&mut cases);
    cases.finish("systemd")
}

/// A running system, and what a person does in it.
struct Systemd<'a> {
    machine: Machine,
    page: &'a Page,
}

impl Systemd<'_> {
    /// Runs a script with `WORDS`; its output is of no interest.
    fn script(&self, script: &str) -> Result<String> {
        self.machine.read(&format!("{WORDS}{script}")).map(|_| String::new())
    }

    /// Runs a section of the page, and then a script, for a service of this name.
    fn section(&self, heading: &str, name: &str, then: &str) -> Result<String> {
        let commands = self.page.commands(heading)?.replace("home", name);
        self.script(&format!("{commands}\n{then}"))
    }

    fn disks(&self, cases: &mut Cases) {
        cases.run("the system runs, and all of its units started", || {
            Ok(self.machine.read("systemctl is-system-running")?.trim().to_owned())
        });
        for name in ["home", "work"] {
            let section = "A disk that opens at boot";
            cases.run(&format!("a disk is made, and a client starts its server: {name}"), || {
                let pids = format!("test \"$(pid {name})\" != 0\nfill {name}");
                self.section(section, name, &pids)
            });
        }
        cases.run("the passphrase opens the disk without this machine's key", || {
            let image = "/var/lib/blockyard/work/disk.img";
            self.script(&format!(
                "systemctl stop blockyard@work.socket\n\
                 blockyard dump {image} --output plain\n\
                 head -c 32M plain | cmp - work-disk\nrm plain\n\
                 systemctl start blockyard@work.socket\nsame work"
            ))
        });
        cases.run("another disk in the same service has a key of its own", || {
            let then = "same home\nfill home archive\nsame home";
            self.section("Another disk in the same service", "home", then)
        });
        cases.run("neither service sees images, keys, processes or sockets of the other", || {
            self.script(SEPARATE)
        });
    }

    fn service(&self, cases: &mut Cases) {
        cases.run("a client that connects during a restart waits for the next server", || {
            self.restart()
        });
        cases.run("a reload adds an export, and a failed one changes nothing", || {
            self.script(RELOAD)
        });
        cases.run("a service is shown, stopped and started", || {
            self.section("Operation", "home", "same home")
        });
        cases.run("a wrong key ends the client, and the mended one opens the disk", || {
            self.script(WRONG_KEY)?;
            self.section("A disk that does not open", "work", "same work")
        });
    }

    fn restart(&self) -> Result<String> {
        self.script(GATE)?;
        // The old server has ended, and the new one is not started yet.
        let mut client = self.machine.connect("/run/blockyard/home.sock")?;
        self.script(OPEN_GATE)?;
        client.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut magic = [0; 8];
        client.read_exact(&mut magic).context("the next server does not answer")?;
        ensure!(&magic == b"NBDMAGIC", "the next server answers {magic:?}");
        self.script("same home\nsame home archive")
    }

    fn users(&self, cases: &mut Cases) {
        cases.run("the group of the drop-in may connect, and others may not", || {
            self.section("Clients", "home", MEMBERS)
        });
        cases.run("a user has a service without root", || {
            self.machine.read("loginctl enable-linger anna\nsystemctl start user@$(id -u anna)")?;
            let commands = self.page.commands("A server of a user")?;
            self.machine.read_as("anna", commands)?;
            let uri = "nbd+unix:///notes?socket=$XDG_RUNTIME_DIR/blockyard/notes.sock";
            self.machine.read_as(
                "anna",
                &format!(
                    "head -c 32M /dev/urandom >data\nnbdcopy data \"{uri}\"\n\
                     systemctl --user restart blockyard@notes\n\
                     nbdcopy \"{uri}\" - | head -c 32M | cmp - data\n\
                     systemctl --user stop blockyard@notes.socket\n\
                     test ! -e $XDG_RUNTIME_DIR/blockyard/notes.sock\n\
                     ! systemctl --user is-active blockyard@notes.service\n\
                     systemctl --user start blockyard@notes.socket\n\
                     systemctl --user show '*' >properties"
                ),
            )?;
            Ok(String::new())
        });
    }

    fn second_boot(self, cases: &mut Cases) {
        cases.run("after a boot, clients read what they wrote", || {
            let notes = "nbd+unix:///notes?socket=$XDG_RUNTIME_DIR/blockyard/notes.sock";
            self.machine
                .read_as("anna", &format!("nbdcopy \"{notes}\" - | head -c 32M | cmp - data"))?;
            self.script("same home\nsame home archive\nsame work")
        });
        cases.run("services that are disabled leave nothing in memory", || {
            self.machine.read_as("anna", "systemctl --user stop blockyard@notes.socket")?;
            self.script(
                "systemctl disable --now blockyard@home.socket blockyard@work.socket\n\
                 test -z \"$(pidof blockyard)\"\n\
                 test -z \"$(ls /run/blockyard)\"\n\
                 test -z \"$(ls /run/credentials | grep blockyard)\"",
            )
        });
        cases.run("the system stops in order", || self.machine.power_off().map(|()| String::new()));
    }
}
