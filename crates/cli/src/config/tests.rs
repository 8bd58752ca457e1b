//! Tests of the configuration.

use blockyard::{DeviceOptions, Polling, UblkOptions};
use blockyard_engine::elevator::ElevatorSpec;

use super::*;
use crate::key::KeySource;
use crate::volume_spec::VolumeFormat;

fn parse(text: &str) -> Result<Config, Failure> {
    Config::parse(text, Path::new("/etc/yard"), "disks.toml")
}

fn refusal(text: &str) -> String {
    parse(text).unwrap_err().message
}

#[test]
fn config_with_relative_paths_starts_at_its_own_folder() {
    let config = parse(
        "socket = 'disks.sock'\nthreads = 3\n\
         [exports.home]\nvolume = 'home.img'\nkey_file = 'keys/home'\nkeyfile_size = '4K'\n\
         [exports.\"\"]\nvolume = '/srv/raw'\ntype = 'plain'\ncipher = 'aes-xts-plain64'\n\
         key_size = 512\nkey_fd = 3\nread_only = true\n",
    )
    .unwrap();
    assert_eq!(config.socket.as_deref(), Some(Path::new("/etc/yard/disks.sock")));
    assert_eq!(config.threads, Some(3));
    let names: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
    assert_eq!(names, ["", "home"]);
    let home = &config.exports[1].volume;
    assert_eq!(home.path, Path::new("/etc/yard/home.img"));
    assert_eq!(home.key.source, KeySource::File("/etc/yard/keys/home".into()));
    assert_eq!(home.key.len_bytes, Some(4096));
    let raw = &config.exports[0];
    assert_eq!(raw.volume.path, Path::new("/srv/raw"));
    assert_eq!(raw.volume.key.source, KeySource::Descriptor(3));
    assert!(raw.read_only && matches!(raw.volume.kind, VolumeFormat::Plain(_)));
}

#[test]
fn config_with_remote_disks_keeps_their_names() {
    for name in ["rbd:vms/home?id=store", "nbd://store.example/home", "nbds://store.example/home"] {
        let text = format!("[exports.a]\nvolume = '{name}'\nheader = '{name}'\n");
        let config = parse(&text).unwrap();
        let VolumeFormat::Luks(luks) = &config.exports[0].volume.kind else { panic!("{name}") };
        assert_eq!(config.exports[0].volume.path, Path::new(name));
        assert_eq!(luks.header.as_deref(), Some(Path::new(name)));
    }
}

#[test]
fn config_with_scheduling_has_what_the_options_have() {
    let config = parse(
        "[exports.home]\nvolume = 'a'\nelevator = 'noop'\nqueue_depth = 4\n\
         max_sectors = 1024\npipeline = 'linux'\npages = 'compound'\nioprio = 'be:2'\n\
         [exports.home.aliases]\nhome-rt = 'rt:0'\nhome-idle = 'idle'\n\
         [exports.raw]\nvolume = 'b'\n",
    )
    .unwrap();
    let home = &config.exports[0];
    assert_eq!(home.scheduling.elevator, Some(ElevatorSpec::parse("noop").unwrap()));
    assert_eq!((home.scheduling.queue_depth, home.scheduling.max_sectors), (Some(4), 1024));
    assert_eq!(home.priority, Priority::best_effort(2));
    assert_eq!(home.pipeline, PipelineChoice::Linux);
    assert!(matches!(home.bounce, BounceChoice::Pages(spec) if spec.allocator.name == "compound"));
    let aliases: Vec<_> = home.aliases.iter().map(|alias| alias.name.as_str()).collect();
    assert_eq!(aliases, ["home-idle", "home-rt"]);
    assert_eq!(home.aliases[1].priority, Priority::real_time(0));
    let raw = &config.exports[1];
    assert_eq!(raw.scheduling, Scheduling::default());
    assert!(raw.priority == Priority::default() && raw.aliases.is_empty());
}

#[test]
fn config_with_an_alias_that_is_taken_names_it() {
    for text in [
        "[exports.home]\nvolume='a'\naliases={home='idle'}\n",
        "[exports.a]\nvolume='a'\naliases={home='idle'}\n[exports.home]\nvolume='b'\n",
        "[exports.a]\nvolume='a'\naliases={home='idle'}\n\
         [exports.b]\nvolume='b'\naliases={home='rt'}\n",
    ] {
        let message = refusal(text);
        assert!(message.starts_with("disks.toml: ") && message.contains("\"home\""), "{message}");
    }
}

#[test]
fn config_with_disks_has_what_the_options_have() {
    let config = parse(
        "[exports.home]\nvolume = 'a'\nvhost_user = 'v'\nnum_queues = 4\nqueue_size = 128\n\
         poll = 'always'\n\
         [exports.\"\"]\nvolume = 'b.img'\nvhost_user = '/run/w'\n",
    )
    .unwrap();
    let disks: Vec<_> = config.exports.iter().flat_map(|export| &export.disk).collect();
    let sockets: Vec<_> = disks.iter().map(|disk| disk.socket.to_string()).collect();
    assert_eq!(sockets, ["vhost-user socket /run/w", "vhost-user socket /etc/yard/v"]);
    let usual = DeviceOptions { name: "b.img".into(), ..DeviceOptions::default() };
    let polling = Polling::Always;
    let home = DeviceOptions { name: "home".into(), queues: 4, ring_len_max: 128, polling };
    assert_eq!([&disks[0].options, &disks[1].options], [&usual, &home]);
}

#[test]
fn config_with_disks_of_this_machine_has_their_numbers() {
    let config = parse(
        "[exports.a]\nvolume = 'a'\nublk = 3\n[exports.b]\nvolume = '/b'\n\
         ublk = true\n[exports.c]\nvolume = 'c'\nublk = false\n",
    )
    .unwrap();
    let disks: Vec<_> = config.exports.iter().map(|export| export.ublk.clone()).collect();
    let disk = |number| Some(UblkOptions { number });
    assert_eq!(disks, [disk(Some(3)), disk(None), None]);
    for (second, problem) in [
        ("ublk=3", "`ublk = 3` is there twice"),
        ("ublk=4\nvhost_user='v'", "`ublk` and `vhost_user` together"),
        ("ublk=-1", "`ublk` is true, false or the number of a disk"),
    ] {
        let first = "[exports.a]\nvolume='a'\nublk=3\n";
        let message = refusal(&format!("{first}[exports.b]\nvolume='b'\n{second}\n"));
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn config_with_a_socket_twice_names_it() {
    for text in [
        "socket='v'\n[exports.a]\nvolume='a'\nvhost_user='/etc/yard/v'\n",
        "[exports.a]\nvolume='a'\nvhost_user='v'\n\
         [exports.b]\nvolume='b'\nvhost_user='v'\n",
    ] {
        let message = refusal(text);
        assert!(message.starts_with("disks.toml: the socket /etc/yard/v is"), "{message}");
    }
}

#[test]
fn config_of_the_documentation_is_one() {
    let config = parse(example_of(include_str!("../../../../docs/cli/config.md"))).unwrap();
    let names: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
    assert_eq!(names, ["archive", "home", "scratch", "two disks in one"]);
    assert!(matches!(config.exports[3].volume.kind, VolumeFormat::Table));
}

#[test]
fn config_of_the_front_page_is_one() {
    let config = parse(example_of(include_str!("../../../../README.md"))).unwrap();
    let names: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
    assert_eq!(names, ["anna", "build"]);
}

/// The first TOML of a page. Its opening line may name a file.
fn example_of(page: &str) -> &str {
    let (_, block) = page.split_once("```toml").unwrap();
    let (_, block) = block.split_once('\n').unwrap();
    block.split("```").next().unwrap()
}

#[test]
fn config_with_an_unknown_key_names_it_and_its_line() {
    let message = refusal("[exports.home]\nvolume = 'a'\nkeyfile = 'b'\n");
    assert!(message.starts_with("disks.toml:3:1: "), "{message}");
    assert!(message.contains("`keyfile`") && message.contains("`key_file`"), "{message}");
}

#[test]
fn config_with_a_name_twice_names_it_and_its_line() {
    let message =
        refusal("[exports.home]\nvolume = 'a'\n[exports.disk]\nvolume = 'b'\n[exports.home]\n");
    assert!(message.starts_with("disks.toml:5:"), "{message}");
    assert!(message.contains("duplicate"), "{message}");
}

#[test]
fn config_with_a_passphrase_is_refused_without_repeating_it() {
    for key in ["passphrase", "password", "key", "secret"] {
        let message = refusal(&format!("[exports.home]\nvolume = 'a'\n{key} = 'hunter2'\n"));
        assert!(message.starts_with("disks.toml:3:1: "), "{message}");
        assert!(message.contains("key_file"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
    let message = refusal("[exports.home]\nvolume = 'a'\npassphrase = 'hunter2\n");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn config_with_contradictions_names_the_export() {
    for (text, word) in [
        ("[exports.home]\n", "`volume` or `table`"),
        ("[exports.home]\nvolume='a'\ntable='b'\n", "`volume` or `table`"),
        ("[exports.home]\nvolume='a'\nkey_file='b'\nkey_fd=3\n", "`key_file`, `key_fd`"),
        ("[exports.home]\nvolume='a'\nkey_command='\"b'\n", "key_command: --key-command"),
        ("[exports.home]\nvolume='a'\nkey_command='b'\nkeyfile_size=3\n", "used whole"),
        ("[exports.home]\nvolume='a'\nkey_file='b'\ntoken_only=true\n", "`token_only`"),
        ("[exports.home]\nvolume='a'\nno_token=true\ntoken_only=true\n", "`no_token`"),
        (
            "[exports.home]\nvolume='a'\ntype='plain'\ncipher='a'\nkey_size=8\ntoken_id=1\n",
            "--token-only",
        ),
        ("[exports.home]\ntable='a'\nkey_file='b'\n", "key_file"),
        ("[exports.home]\nvolume='a'\nskip=3\n", "--skip"),
        ("[exports.home]\nvolume='a'\ntype='plain'\n", "--cipher"),
        ("[exports.home]\nvolume='a'\nkeyfile_size='4X'\n", "4X"),
        ("[exports.home]\nvolume='a'\nelevator='none,a=1'\n", "elevator: none: \"a\""),
        ("[exports.home]\nvolume='a'\nqueue_depth=0\n", "queue_depth: a queue depth"),
        ("[exports.home]\nvolume='a'\nmax_sectors=9\n", "max_sectors: the longest"),
        ("[exports.home]\nvolume='a'\nioprio='high'\n", "ioprio: \"high\" is no"),
        ("[exports.home]\nvolume='a'\npipeline='H'\n", "pipelines are adaptive, linux, A"),
        ("[exports.home]\nvolume='a'\npages='bulk'\n", "all-or-nothing; or none, or slots"),
        ("[exports.home]\nvolume='a'\naliases={''='rt'}\n", "an alias cannot be empty"),
        ("[exports.home]\nvolume='a'\nqueue_size=64\n", "`vhost_user`"),
        ("[exports.home]\nvolume='a'\npoll='auto'\n", "`vhost_user`"),
        ("[exports.home]\nvolume='a'\nvhost_user='v'\npoll='on'\n", "poll: a queue polls"),
        ("[exports.home]\nvolume='a'\nvhost_user='v'\nnum_queues=0\n", "num_queues: a disk"),
        ("[exports.home]\nvolume='a'\nvhost_user='v'\nqueue_size=48\n", "queue_size: a"),
    ] {
        let message = refusal(text);
        assert!(message.starts_with("disks.toml: exports.home: "), "{message}");
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn config_with_nothing_to_serve_is_refused() {
    assert!(refusal("exports = {}").contains("nothing to serve"));
    assert!(refusal("socket = 'a'").contains("exports"));
    assert!(refusal("threads = 5000\n[exports.a]\nvolume = 'a'").contains("5000"));
    assert!(refusal("max_connections = 0\n[exports.a]\nvolume = 'a'").contains("1 to 1024"));
}

#[test]
fn export_names_that_nbd_cannot_carry_are_refused() {
    assert!(check_export_name(&"n".repeat(4096)).is_ok());
    assert!(check_export_name(&"n".repeat(4097)).is_err());
    assert!(check_export_name("a\0b").is_err());
}

#[test]
fn value_of_another_type_names_its_key() {
    let export = "[exports.a]\nvolume = 'a'\n";
    for (line, problem) in [
        (
            "socket_mode = 660",
            "socket_mode: invalid type: integer `660`, expected a string; put it",
        ),
        ("max_connections = 'x'", "max_connections: invalid type: string \"x\", expected a whole"),
    ] {
        let message = refusal(&format!("{line}\n{export}"));
        assert!(message.starts_with("disks.toml:1:") && message.contains(problem), "{message}");
    }
    assert!(refusal("socket = 's'\n").contains("a table [exports.NAME]"));
}
