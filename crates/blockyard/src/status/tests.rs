use std::collections::BTreeSet;

use blockyard_host::stages::Stage;

use super::*;
use crate::limit::Party;

fn times(samples: u64, sum_ns: u64) -> Times {
    Times { samples, sum_ns, ..Times::default() }
}

fn activity(requests: u64, device_ns: u64, connected_ns: u64) -> Activity {
    let read = KindRequests {
        requests,
        total: times(requests, device_ns),
        stages: StageTimes { device: times(requests, device_ns), ..StageTimes::default() },
        ..KindRequests::default()
    };
    let requests = Requests {
        sampled_every: 1,
        occupied_ns: connected_ns,
        connected_ns,
        read,
        ..Requests::default()
    };
    Activity { requests, ..Activity::default() }
}

#[test]
fn difference_of_two_statuses_decides() {
    let idle = activity(10, 1_000, 1_000_000);
    assert_eq!(idle.limit_since(&Activity::default()).unwrap().party, Party::Client);
    let busy = activity(20, 2_000_000, 2_000_000);
    let limit = busy.limit_since(&idle).unwrap();
    assert_eq!(limit.party, Party::Device);
    assert!(limit.saw.contains("100 % of a request's 200 us"), "{limit:?}");
    assert_eq!(busy.limit_since(&busy), None);
    let mut more = busy.clone();
    more.requests.read.requests = 21;
    more.requests.connected_ns = 3_000_000;
    assert_eq!(more.limit_since(&busy).unwrap().party, Party::Client, "the earlier samples count");
    let Shares { stages, mean_ns } = busy.requests.shares_since(&idle.requests);
    assert_eq!((stages[Stage::Device as usize], mean_ns), (1.0, 199_900.0));
}

#[test]
fn workers_are_busy_by_their_time_beside_connections_and_not_by_that_of_other_hours() {
    let mut now = activity(100, 0, 1_000_000_000);
    now.requests.read.total = times(100, 1_000_000_000);
    now.requests.read.stages.cipher_wait = times(100, 990_000_000);
    now.requests.read.stages.cipher = times(100, 10_000_000);
    // Other volumes used the workers for much longer than this one had a connection.
    now.threads =
        vec![Threads { work: Work::Workers, count: 2, cpu_ns: u64::MAX / 2, ..Threads::default() }];
    now.requests.workers_busy_ns = 200_000_000;
    let idle = now.limit_since(&Activity::default()).unwrap();
    assert_eq!(idle.party, Party::HandOver, "{idle:?}");
    now.requests.workers_busy_ns = 1_990_000_000;
    let busy = now.limit_since(&Activity::default()).unwrap();
    assert_eq!(busy.party, Party::AllWorkers, "{busy:?}");
}

#[test]
fn no_percentile_is_behind_the_longest() {
    let mut histogram = blockyard_host::stages::Times::default();
    histogram.record(blockyard_engine::time::Nanos(1025));
    assert!(histogram.permille(990) > histogram.max(), "the bucket's middle would be shown");
    let times = Times::from(histogram);
    assert_eq!((times.p99_ns, times.p50_ns), (times.max_ns, times.max_ns));
}

/// The JSON of a status with all members.
fn json() -> String {
    let json = concat!(
        r#"{"max_connections":16,"io_uring":"unrestricted","#,
        r#""sandbox":{"landlock":7,"seccomp":true,"no_new_privileges":true},"#,
        r#""build":{"version":"1.2.3","commit":"abc","features":["nbd"]},"#,
        r#""process":{"started_at_unix_s":1,"cpu_ns":2,"resident_bytes":3,"#,
        r#""open_descriptors":4,"max_descriptors":null},"#,
        r#""placement":{"cpus":"0-3","quota_cpus":2,"memory_node":0},"devices":[{"#,
        r#""exports":["home","h"],"size_bytes":4096,"state":"suspended","key":"wiped","#,
        r#""loss":{"device":"d","problem":"p","at_unix_s":7,"status":"I/O error"},"#,
        r#""lost_servers":[{"server":"nbd://a","is_path":false,"since_unix_s":8}],"#,
        r#""refused_write":{"sector":8,"sectors":1,"at_unix_s":9},"#,
        r#""dirty_bitmap":{"name":"daily","granularity_bytes":65536,"#,
        r#""dirty_bytes":1,"frozen_bytes":null,"backup":null},"#,
        r#""limits":[{"exports":["h"],"group":null,"iops":1,"bytes_per_s":null,"burst_ns":2}],"#,
        r#""table":["0 8 zero"],"status":["0 8 zero"],"#,
        r#""paths":{"total":2,"failed":1},"pipelines":["adaptive"],"#,
        r#""adaptive":[{"cipher_ns":1,"part_bytes":2,"hand_over_ns":3,"#,
        r#""fan_out_min_bytes":null,"seeks":true}],"#,
        r#""ciphers":{"inline":{"parts":1,"bytes":2},"fanned_out":{"parts":3,"bytes":4},"#,
        r#""sorted":{"parts":5,"bytes":6}},"#,
        r#""reads":{"bios":1,"bytes":2},"writes":{"bios":3,"bytes":4},"other_bios":5,"errors":6,"#,
        r#""held_bios":7,"parked_parts":8,"connections":9,"in_flight":10,"#,
        r#""requests":{"sampled_every":256,"occupied_ns":1,"connected_ns":2,"workers_busy_ns":3,"#,
        r#""device_queue":true,"#,
        "KIND",
        r#""threads":[{"threads":"workers","count":1,"cpu_ns":2,"runnable_ns":3,"#,
        r#""voluntary_switches":4,"involuntary_switches":5,"pool":6}],"#,
        r#""limit":{"party":"the device","saw":"s","change":"c"}}],"closed":["away"]}"#,
    );
    let times = r#"{"samples":1,"sum_ns":2,"mean_ns":2.5,"p50_ns":3,"p99_ns":4,"max_ns":5}"#;
    let stages =
        ["throttle", "queue", "cipher-wait", "cipher", "submit-wait", "device", "completion"]
            .map(|stage| format!("\"{stage}\":{times}"))
            .join(",");
    let classes = concat!(
        r#""unsupported":1,"no-space":2,"invalid":3,"transport":4,"medium":5,"io":6,"#,
        r#""refused":7"#,
    );
    let kinds = ["read", "write", "flush", "other"].map(|kind| {
        format!(
            "\"{kind}\":{{\"requests\":1,\"bytes\":2,\"errors\":3,\
             \"error_classes\":{{{classes}}},\"total\":{times},\"stages\":{{{stages}}}}}"
        )
    });
    let flushes = format!("\"flush_times\":{times}");
    json.replace("KIND", &format!("{},{flushes}}},", kinds.join(",")))
}

/// The JSON of `status --json` for programs: names, order and values.
#[test]
fn json_of_a_status_is_the_documented_one_and_comes_back() {
    let json = json();
    let status = Status::parse(json.as_bytes()).unwrap();
    assert_eq!(status.devices[0].activity.limit.as_ref().unwrap().party, Party::Device);
    assert_eq!(status.devices[0].counts.ciphers.sorted.bytes, 6);
    assert_eq!(serde_json::to_string(&status).unwrap(), json);
}

/// The names of all members of a value.
fn members(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            names.extend(object.keys().cloned());
            object.values().for_each(|value| members(value, names));
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| members(value, names)),
        _ => {}
    }
}

#[test]
fn page_names_each_key_of_the_json() {
    let status = Status::parse(json().as_bytes()).unwrap();
    let mut names = BTreeSet::new();
    members(&serde_json::to_value(&status).unwrap(), &mut names);
    assert!(names.contains("lost_servers") && names.contains("p99_ns"));
    let page = include_str!("../../../../docs/status.md");
    let section = page.split("\n## ").find(|section| section.starts_with("Keys of the JSON"));
    let section = section.unwrap();
    let stages = Stage::ALL.map(Stage::name);
    let classes = ErrorClasses::default().named().map(|(name, _)| name);
    let is_missing = |name: &&String| {
        let name = name.as_str();
        !stages.contains(&name)
            && !classes.contains(&name)
            && !section.contains(&format!("`{name}`"))
    };
    assert_eq!(names.iter().filter(is_missing).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn status_of_an_older_server_lacks_members_and_that_of_a_newer_one_has_more() {
    let status = Status::parse(br#"{"devices": [{"exports": ["a"], "weather": 7}]}"#).unwrap();
    assert_eq!(status.devices[0].exports, ["a"]);
    assert_eq!(status.devices[0].counts, Counts::default());
    assert!(Status::parse(b"no JSON").is_err());
}
