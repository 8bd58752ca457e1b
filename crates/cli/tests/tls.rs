//! NBD over TLS: certificates, both ends, and what must not be possible.

mod lab;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use lab::{Lab, SMALL_LEN_BYTES, Server, noise, text};
use openssl::asn1::Asn1Time;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509Builder, X509Name};
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
    date_time_ymd,
};
use rustix::process::Signal;

const STARTTLS: &[u8] = b"IHAVEOPT\0\0\0\x05\0\0\0\0";
const ACK_BYTES: usize = 20;

/// A directory `pki` for `localhost`, and the client `pki/alice`.
fn pki() -> Lab {
    let lab = Lab::new();
    lab.ok(&["tls", "init", "pki", "--host", "localhost", "127.0.0.1"]);
    lab.ok(&["tls", "add-client", "pki", "alice"]);
    lab
}

fn served(lab: &Lab, words: &[&str]) -> Server {
    lab.volume("vol");
    lab.write(
        "vol.table",
        format!("0 {} linear vol 0\n", fs::metadata(lab.path("vol")).unwrap().len() / 512),
    );
    lab.serve(
        &[&["--table", "vol.table", "--socket", "s", "--tls-certificates", "pki"], words].concat(),
    )
}

fn uri(certificates: &str) -> String {
    format!("nbds+unix:///?socket=s&tls-certificates={certificates}")
}

#[test]
fn keys_are_private_and_nothing_is_overwritten_unasked() {
    let lab = pki();
    for key in ["pki/ca-key.pem", "pki/server-key.pem", "pki/alice/client-key.pem"] {
        let mode = fs::metadata(lab.path(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let before = lab.read("pki/ca-key.pem");
    let error = lab.refused(&["tls", "init", "pki", "--host", "other"], 1);
    assert!(error.contains("exists") && error.contains("--force"), "{error}");
    let error = lab.refused(&["tls", "add-client", "pki", "alice"], 1);
    assert!(error.contains("exists"), "{error}");
    let error = lab.refused(&["tls", "add-client", "pki", "../alice"], 1);
    assert!(error.contains("../alice"), "{error}");
    assert_eq!(lab.read("pki/ca-key.pem"), before);
    let shown = text(&lab.ok(&["tls", "show", "pki"]).stdout);
    assert!(shown.contains("localhost") && !shown.contains("refused"), "{shown}");
    let sound = text(&lab.ok(&["doctor", "--tls", "pki"]).stdout);
    assert!(!sound.contains(".pem"), "{sound}");
}

#[test]
fn volume_on_a_server_with_tls_is_written_and_read() {
    let lab = pki();
    let server = served(&lab, &["--tls-verify-peer"]);
    let uri = uri("pki/alice");
    let plaintext = noise(SMALL_LEN_BYTES, 3);
    let loaded = lab.fed(&["load", &uri, "--key-file", "pass"], &plaintext);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    assert!(lab.ok(&["dump", &uri, "--key-file", "pass"]).stdout == plaintext);
    let info = text(&lab.ok(&["info", &uri]).stdout);
    assert!(info.contains("flush"), "{info}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(lab.ok(&["dump", "vol", "--key-file", "pass"]).stdout == plaintext, "the file itself");
}

#[test]
fn end_that_is_not_trusted_is_one_error() {
    let lab = pki();
    lab.ok(&["tls", "init", "other", "--host", "localhost"]);
    lab.ok(&["tls", "add-client", "pki", "bob"]);
    fs::create_dir(lab.path("bare")).unwrap();
    fs::copy(lab.path("pki/ca-cert.pem"), lab.path("bare/ca-cert.pem")).unwrap();
    let _server = served(&lab, &["--tls-authz", "alice"]);
    lab.ok(&["info", &uri("pki/alice")]);
    for (uri, problem) in [
        (uri("other"), "was not issued by the CA"),
        (uri("bare"), "refuses the certificate"),
        (uri("pki/bob"), "(--tls-authz) does not name it"),
        (
            uri("pki/alice") + "&tls-hostname=example.org",
            "is not for example.org: it names localhost",
        ),
        (uri("nowhere"), "nowhere/ca-cert.pem"),
        ("nbd+unix:///?socket=s".into(), "requires TLS"),
    ] {
        let dump = text(&lab.run(&["dump", &uri, "--key-file", "pass"]).stderr);
        assert!(dump.contains(problem) && dump.lines().count() == 1, "{uri}: {dump}");
        let info = text(&lab.run(&["info", &uri]).stderr);
        assert!(info.starts_with("error: ") && info.lines().count() == 1, "{uri}: {info}");
    }
}

#[test]
fn client_that_wants_tls_never_speaks_in_the_clear() {
    let lab = pki();
    lab.volume("vol");
    let _server = lab.serve(&["vol", "--key-file", "pass", "--socket", "s"]);
    let error = lab.refused(&["dump", &uri("pki"), "--key-file", "pass"], 4);
    assert!(error.contains("does not offer TLS"), "{error}");
}

#[test]
fn disk_over_tls_survives_a_restart_of_its_server() {
    let lab = pki();
    let far = served(&lab, &["--tls-verify-peer"]);
    let sectors = fs::metadata(lab.path("vol")).unwrap().len() / 512;
    lab.write("near.table", format!("0 {sectors} linear {} 0\n", uri("pki/alice")));
    let _near = lab.serve(&["--table", "near.table", "--socket", "near"]);
    let mut client = lab::nbd::Nbd::open(&lab.path("near"));
    let before = client.read(0, 256 << 10);
    assert!(before == lab.read("vol")[..256 << 10]);
    far.stop(Signal::TERM);
    let table = ["--table", "vol.table", "--socket", "s", "--tls-certificates", "pki"];
    let _far = lab.serve(&[&table[..], &["--tls-verify-peer"]].concat());
    assert!(client.read(0, 256 << 10) == before);
}

/// The SHA-256 fingerprint of a certificate, from `tls show`.
fn fingerprint(lab: &Lab, dir: &str) -> String {
    let shown = text(&lab.ok(&["tls", "show", dir]).stdout);
    let of_client = shown.split("client-cert.pem").nth(1).expect("a client's certificate");
    let line = of_client.lines().find_map(|line| line.trim().strip_prefix("fingerprint:"));
    line.expect("its fingerprint").trim().to_owned()
}

#[test]
fn list_of_fingerprints_admits_these_certificates_and_no_other() {
    let lab = pki();
    lab.ok(&["tls", "add-client", "pki", "bob"]);
    lab.write("list", format!("# hosts\n{}\n", fingerprint(&lab, "pki/alice")));
    let _server = served(&lab, &["--tls-authz", "./list"]);
    lab.ok(&["info", &uri("pki/alice")]);
    let error = text(&lab.run(&["info", &uri("pki/bob")]).stderr);
    assert!(error.contains("(--tls-authz) does not name it"), "{error}");
    // A new certificate of the same name has another fingerprint.
    lab.ok(&["tls", "add-client", "pki", "alice", "--force"]);
    let error = text(&lab.run(&["info", &uri("pki/alice")]).stderr);
    assert!(error.contains("(--tls-authz) does not name it"), "{error}");
}

/// The CA's list of revoked certificates, with that of one directory.
fn revoke(lab: &Lab, certificate: &str, list: &str) {
    let certificate = X509::from_pem(&lab.read(certificate)).unwrap();
    let serial = certificate.serial_number().to_bn().unwrap().to_vec();
    let now = date_time_ymd(2026, 1, 1);
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from_slice(&serial),
        revocation_time: now,
        reason_code: None,
        invalidity_date: None,
    };
    let of_ca = |name: &str| String::from_utf8(lab.read(name)).unwrap();
    let key = KeyPair::from_pem(&of_ca("pki/ca-key.pem")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&of_ca("pki/ca-cert.pem"), &key).unwrap();
    let params = CertificateRevocationListParams {
        this_update: now,
        next_update: date_time_ymd(2126, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    lab.write(list, params.signed_by(&issuer).unwrap().pem().unwrap());
}

#[test]
fn revoked_certificates_of_clients_and_servers_are_refused() {
    let lab = pki();
    lab.ok(&["tls", "add-client", "pki", "bob"]);
    revoke(&lab, "pki/bob/client-cert.pem", "pki/ca-crl.pem");
    let _server = served(&lab, &["--tls-verify-peer"]);
    lab.ok(&["info", &uri("pki/alice")]);
    let error = text(&lab.run(&["info", &uri("pki/bob")]).stderr);
    assert!(error.contains("revoked"), "{error}");
    revoke(&lab, "pki/server-cert.pem", "pki/alice/ca-crl.pem");
    let error = text(&lab.run(&["info", &uri("pki/alice")]).stderr);
    assert!(error.contains("revoked"), "{error}");
    lab.write("pki/alice/ca-crl.pem", "-----BEGIN X509 CRL-----\nAA==\n-----END X509 CRL-----\n");
    let error = text(&lab.run(&["info", &uri("pki/alice")]).stderr);
    assert!(error.contains("ca-crl.pem") || error.contains("ca-cert.pem"), "{error}");
}

#[test]
fn client_that_accepts_any_server_needs_no_files() {
    let lab = pki();
    let _server = served(&lab, &[]);
    lab.ok(&["info", "nbds+unix:///?socket=s&tls-verify-peer=false"]);
    let error = text(&lab.run(&["info", "nbds+unix:///?socket=s"]).stderr);
    assert!(error.contains("default directories"), "{error}");
}

#[test]
fn names_and_directories_that_cannot_be_trusted_are_refused() {
    let lab = pki();
    for host in ["", " ", "https://example.org", "a b", "-", "a..b", "a\nb"] {
        let error = lab.refused(&["tls", "init", "new", "--host", host], 1);
        assert!(error.contains(&format!("{host:?}")), "{error}");
        assert!(!lab.path("new").exists());
    }
    lab.ok(&["tls", "init", "names", "--host", "*.example.org", "::1", "host"]);
    fs::create_dir(lab.path("open")).unwrap();
    fs::set_permissions(lab.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let error = lab.refused(&["tls", "init", "open", "--host", "localhost"], 1);
    assert!(error.contains("chmod go-w"), "{error}");
    fs::create_dir(lab.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", lab.path("pki/carol")).unwrap();
    let error = lab.refused(&["tls", "add-client", "pki", "carol"], 1);
    assert!(error.contains("symbolic link"), "{error}");
    assert!(fs::read_dir(lab.path("elsewhere")).unwrap().next().is_none());
    let made = lab.ok(&["tls", "add-client", "pki", "a&b \u{1b}[2J"]);
    let said = text(&made.stdout);
    assert!(said.contains("a%26b%20%1B") && !said.contains('\u{1b}'), "{said}");
    lab.volume("vol");
    let fifo = std::process::Command::new("mkfifo").arg(lab.path("fifo")).status().unwrap();
    assert!(fifo.success());
    let words =
        ["serve", "vol", "--key-file", "pass", "--socket", "s", "--tls-certificates", "pki"];
    let error = lab.refused(&[&words[..], &["--tls-authz", "./fifo"]].concat(), 1);
    assert!(error.contains("no regular file"), "{error}");
}

/// A client after its flags.
fn hostile(lab: &Lab) -> UnixStream {
    let mut stream = UnixStream::connect(lab.path("s")).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&[0, 0, 0, 3]).unwrap();
    stream
}

#[test]
fn bytes_behind_starttls_get_no_answer() {
    let lab = pki();
    let _server = served(&lab, &[]);
    for behind in [&b"IHAVEOPT\0\0\0\x08\0\0\0\0"[..], &[0x16, 3, 1, 2, 0], b"x"] {
        let mut stream = hostile(&lab);
        stream.write_all(&[STARTTLS, behind].concat()).unwrap();
        let mut answer = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }
}

#[test]
fn clients_that_stop_inside_tls_do_not_delay_others() {
    let lab = pki();
    let _server = served(&lab, &[]);
    let silent: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = hostile(&lab);
            stream.write_all(STARTTLS).unwrap();
            stream.read_exact(&mut [0; ACK_BYTES]).unwrap();
            // The start of a record that never ends.
            stream.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
            stream
        })
        .collect();
    lab.ok(&["info", &uri("pki")]);
    let mut garbage = hostile(&lab);
    garbage.write_all(STARTTLS).unwrap();
    garbage.read_exact(&mut [0; ACK_BYTES]).unwrap();
    garbage.write_all(&[0; 4096]).unwrap();
    let _ = garbage.read_to_end(&mut Vec::new());
    drop(silent);
    lab.ok(&["info", &uri("pki")]);
}

#[test]
fn options_that_leave_the_plaintext_open_are_refused() {
    let lab = pki();
    lab.volume("vol");
    let refused =
        |words: &[&str]| lab.refused(&[&["serve", "vol", "--key-file", "pass"], words].concat(), 1);
    let error = refused(&["--listen", "0.0.0.0:0"]);
    assert!(error.contains("--insecure") && error.contains("tls init"), "{error}");
    let error = refused(&["--listen", "0.0.0.0:0", "--tls", "on", "--tls-certificates", "pki"]);
    assert!(error.contains("--insecure"), "{error}");
    let error = refused(&["--socket", "s", "--tls-verify-peer"]);
    assert!(error.contains("need TLS"), "{error}");
    let error = refused(&["--socket", "s", "--tls-certificates", "pki", "--tls-authz", "./none"]);
    assert!(error.contains("./none"), "{error}");
    let config = "listen = \"0.0.0.0:0\"\n[exports.a]\nvolume = \"vol\"\nkey_file = \"pass\"\n";
    lab.write("open.toml", config);
    let error = lab.refused(&["serve", "--config", "open.toml"], 1);
    assert!(error.contains("--insecure"), "{error}");
    lab.write("shut.toml", format!("tls_certificates = \"pki\"\ntls_verify_peer = true\n{config}"));
    let server = lab.serve(&["--config", "shut.toml"]);
    assert!(!server.said.iter().any(|line| line.contains("warning")), "{:?}", server.said);
}

/// A certificate that is its own issuer.
fn own(key: &PKey<Private>, change: impl FnOnce(&mut X509Builder)) -> X509 {
    let mut name = X509Name::builder().unwrap();
    name.append_entry_by_text("CN", "localhost").unwrap();
    let name = name.build();
    let mut builder = X509::builder().unwrap();
    builder.set_version(2).unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_pubkey(key).unwrap();
    builder.set_not_before(&Asn1Time::from_unix(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    change(&mut builder);
    builder.sign(key, MessageDigest::sha256()).unwrap();
    builder.build()
}

fn rsa(bits: u32) -> PKey<Private> {
    PKey::from_rsa(openssl::rsa::Rsa::generate(bits).unwrap()).unwrap()
}

#[test]
fn doctor_names_the_field_that_a_client_will_refuse() {
    let lab = pki();
    let key = rsa(2048);
    let check = |name: &str, certificate: &X509, key: &PKey<Private>, field: &str| {
        let pem = certificate.to_pem().unwrap();
        for (file, bytes) in [
            ("ca-cert.pem", &pem),
            ("server-cert.pem", &pem),
            ("server-key.pem", &key.private_key_to_pem_pkcs8().unwrap()),
        ] {
            fs::create_dir_all(lab.path(name)).unwrap();
            lab.write(&format!("{name}/{file}"), bytes);
        }
        let said = text(&lab.ok(&["doctor", "--tls", name]).stdout);
        assert!(said.contains("server-cert.pem") && said.contains(field), "{name}: {said}");
    };
    let san = |builder: &mut X509Builder| {
        let context = builder.x509v3_context(None, None);
        let san = SubjectAlternativeName::new().dns("localhost").build(&context).unwrap();
        builder.append_extension(san).unwrap();
    };
    check("cn", &own(&key, |_| {}), &key, "subjectAltName");
    let ca = own(&key, |builder| {
        san(builder);
        builder.append_extension(BasicConstraints::new().ca().build().unwrap()).unwrap();
    });
    check("ca", &ca, &key, "basicConstraints");
    let old = own(&key, |builder| {
        san(builder);
        builder.set_not_after(&Asn1Time::from_unix(86_400).unwrap()).unwrap();
    });
    check("old", &old, &key, "notAfter: it expired on 1970-01-02");
    let weak = rsa(1024);
    check("weak", &own(&weak, san), &weak, "RSA with 1024 bits");
    check("v1", &own(&key, |builder| builder.set_version(0).unwrap()), &key, "X.509 version 1");
    check("key", &own(&key, san), &rsa(2048), "belongs to another certificate");
    fs::copy(lab.path("cn/server-cert.pem"), lab.path("pki/server-cert.pem")).unwrap();
    let said = text(&lab.ok(&["doctor", "--tls", "pki"]).stdout);
    assert!(said.contains("issuer: no certificate in ca-cert.pem has signed it"), "{said}");
}
