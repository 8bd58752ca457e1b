//! The pin `tang` of clevis: a server that helps with a key and never learns it.
//!
//! The key of the JWE is derived from K = s·E, with the server's secret s and the point E of the
//! JWE (`epk`). The client draws a random e and asks the server for s·(E + e·G), which is K + e·S
//! with the server's public key S. So the server sees a random point, and the client takes e·S off.
//! Tang's documentation calls this the McCallum-Relyea exchange. Keys are points of P-521 as JWK
//! (RFC 7518, 6.2); the key derivation is Concat KDF (RFC 7518, 4.6).

use p521::elliptic_curve::ff::PrimeField;
use p521::elliptic_curve::group::Group;
use p521::elliptic_curve::point::AffineCoordinates;
use p521::elliptic_curve::sec1::{FromSec1Point, ToSec1Point};
use p521::{AffinePoint, FieldBytes, ProjectivePoint, Scalar, Sec1Point};
use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::super::tree::{Node, TreeError, parse_text};
use super::jwe::{Jwe, KEY_LEN_BYTES, decoded, encoded};
use crate::error::Error;
use crate::secret::SecretBytes;
use crate::stack::with_wiped_stack;

const CURVE: &str = "P-521";
const COORDINATE_LEN_BYTES: usize = 66;
/// Bits of the first byte of a number below 2^521.
const FIRST_BYTE_MASK: u8 = 1;
const ENCRYPTION: &str = "A256GCM";
/// Keys of a server: two as a rule, and more after rotations.
const SERVER_KEYS_MAX: usize = 64;

/// An exchange with a tang server: [`TangExchange::request`] goes to [`TangExchange::path`] of the
/// server at [`TangExchange::url`] by POST, and [`TangExchange::open`] takes its answer.
pub struct TangExchange<'a> {
    jwe: &'a Jwe,
    url: String,
    key_id: String,
    server: ProjectivePoint,
    /// The client's random number, which does not move: each move would leave a copy.
    blinding: Box<Zeroizing<Scalar>>,
    blinded: ProjectivePoint,
}

impl<'a> TangExchange<'a> {
    /// Prepares an exchange with a new random number.
    ///
    /// # Errors
    /// The header of the JWE violates its format, is not of this pin, or uses another curve or
    /// cipher; or the system has no random numbers.
    pub fn new(jwe: &'a Jwe) -> Result<Self, Error> {
        let pin = Pin::of(&Node::root(&jwe.header)).map_err(|error| {
            Error::header(format!("jwe.protected: {}", error.path), error.problem)
        })?;
        let Pin { url, key_id, server, ephemeral } = pin;
        let (blinding, blinded) = with_wiped_stack(|| {
            let blinding = random_scalar()?;
            let blinded = ephemeral + ProjectivePoint::GENERATOR * **blinding;
            Ok::<_, Error>((blinding, blinded))
        })?;
        Ok(Self { jwe, url, key_id, server, blinding, blinded })
    }

    /// URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Path of the request, below the URL.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/rec/{}", self.key_id)
    }

    /// Body of the request, of the type `application/jwk+json`.
    #[must_use]
    pub fn request(&self) -> String {
        jwk_of(&self.blinded).to_string()
    }

    /// Decrypts the passphrase with the body of the answer.
    ///
    /// # Errors
    /// The answer is no point of the curve, or of another key.
    pub fn open(&self, answer: &[u8]) -> Result<SecretBytes, Error> {
        let of_answer = |problem: String| Error::header("the answer of the server", problem);
        let answer = parse_text(answer).map_err(of_answer)?;
        let answer = point_of(&Node::root(&answer))
            .map_err(|error| of_answer(format!("{}: {}", error.path, error.problem)))?;
        with_wiped_stack(|| {
            let shared = answer - self.server * **self.blinding;
            if bool::from(shared.is_identity()) {
                return Err(of_answer("it is no point of this exchange".to_owned()));
            }
            let x = Zeroizing::new(shared.to_affine().x());
            self.jwe.decrypt(&derived_key(&x))
        })
    }
}

/// Fields of the JWE's header.
struct Pin {
    url: String,
    key_id: String,
    server: ProjectivePoint,
    ephemeral: ProjectivePoint,
}

impl Pin {
    fn of(header: &Node<'_>) -> Result<Self, TreeError> {
        for (key, wanted) in [("alg", "ECDH-ES"), ("enc", ENCRYPTION)] {
            let node = header.get(key)?;
            if node.text()? != wanted {
                return Err(node.error(format!("only {wanted} is supported")));
            }
        }
        for key in ["apu", "apv", "zip", "crit"] {
            if let Some(node) = header.find(key)? {
                return Err(node.error("it is not supported"));
            }
        }
        let key_id = header.get("kid")?;
        let tang = header.get("clevis")?.get("tang")?;
        let url = tang.get("url")?.name()?.to_owned();
        let ephemeral = point_of(&header.get("epk")?)?;
        let keys = tang.get("adv")?.get("keys")?;
        let server = server_key(&keys, key_id.name()?)?;
        let server = server.ok_or_else(|| {
            key_id.error("the keys that the server had advertised do not contain it")
        })?;
        // It becomes a part of the request's first line.
        let key_id = key_id.name()?.to_owned();
        Ok(Self { url, key_id, server, ephemeral })
    }
}

/// The key of a server with this thumbprint (RFC 7638): of SHA-256, or of SHA-1 as in old versions
/// of clevis.
fn server_key(keys: &Node<'_>, key_id: &str) -> Result<Option<ProjectivePoint>, TreeError> {
    let keys = keys.array()?;
    for key in keys.iter().take(SERVER_KEYS_MAX) {
        if key.get("kty")?.text()? != "EC" || key.get("crv")?.text()? != CURVE {
            continue;
        }
        let text = |name| Ok::<_, TreeError>(json!(key.get(name)?.text()?).to_string());
        let x = text("x")?;
        let y = text("y")?;
        let canonical = format!("{{\"crv\":\"{CURVE}\",\"kty\":\"EC\",\"x\":{x},\"y\":{y}}}");
        let thumbprints =
            [encoded(&Sha256::digest(&canonical)), encoded(&Sha1::digest(&canonical))];
        if thumbprints.iter().any(|thumbprint| thumbprint == key_id) {
            return point_of(key).map(Some);
        }
    }
    Ok(None)
}

/// The point of a JWK. It lies on the curve.
fn point_of(node: &Node<'_>) -> Result<ProjectivePoint, TreeError> {
    for (key, wanted) in [("kty", "EC"), ("crv", CURVE)] {
        let field = node.get(key)?;
        if field.text()? != wanted {
            return Err(field.error(format!("only {wanted} is supported")));
        }
    }
    let mut bytes = vec![4];
    for key in ["x", "y"] {
        let field = node.get(key)?;
        let coordinate = decoded(field.text()?).filter(|it| it.len() == COORDINATE_LEN_BYTES);
        let problem = "it is no number of 66 bytes in base64url";
        bytes.extend(coordinate.ok_or_else(|| field.error(problem))?);
    }
    let point = Sec1Point::from_bytes(&bytes)
        .ok()
        .and_then(|point| Option::<AffinePoint>::from(AffinePoint::from_sec1_point(&point)));
    point.map(ProjectivePoint::from).ok_or_else(|| node.error("it is no point of the curve"))
}

fn jwk_of(point: &ProjectivePoint) -> Value {
    let bytes = point.to_affine().to_sec1_point(false);
    let coordinates = bytes.as_bytes()[1..].split_at(COORDINATE_LEN_BYTES);
    json!({
        "kty": "EC",
        "crv": CURVE,
        "alg": "ECMR",
        "key_ops": ["deriveKey"],
        "x": encoded(coordinates.0),
        "y": encoded(coordinates.1),
    })
}

/// A random number below the order of the curve.
fn random_scalar() -> Result<Box<Zeroizing<Scalar>>, Error> {
    loop {
        let mut bytes = Zeroizing::new([0; COORDINATE_LEN_BYTES]);
        getrandom::fill(bytes.as_mut_slice())?;
        bytes[0] &= FIRST_BYTE_MASK;
        let repr = FieldBytes::try_from(bytes.as_slice()).expect("its length");
        // The order is just below 2^521, so the first try nearly always succeeds.
        if let Some(scalar) = Option::<Scalar>::from(Scalar::from_repr(repr)) {
            return Ok(Box::new(Zeroizing::new(scalar)));
        }
    }
}

/// Concat KDF with one round: `1 ‖ x ‖ len ‖ "A256GCM" ‖ 0 ‖ 0 ‖ 256`, all lengths in four bytes.
fn derived_key(x: &FieldBytes) -> SecretBytes {
    let length = |len: usize| u32::try_from(len).expect("short").to_be_bytes();
    let mut hash = Sha256::new();
    hash.update(1_u32.to_be_bytes());
    hash.update(x);
    hash.update(length(ENCRYPTION.len()));
    hash.update(ENCRYPTION);
    hash.update([0; 8]);
    hash.update(length(8 * KEY_LEN_BYTES));
    let mut key = SecretBytes::zeroed(KEY_LEN_BYTES);
    hash.finalize_into(key.as_mut_slice().try_into().expect("its length"));
    key
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc;
    use std::thread;

    use super::super::{Token, TokenKind};
    use super::*;

    const TOKEN: &str = include_str!("../../../../../testdata/tokens/clevis-tang.json");
    const SERVER: &str = include_str!("../../../../../testdata/tokens/tang-server-key.txt");

    fn jwe_of(token: &str) -> Box<Jwe> {
        match Token::parse(token.as_bytes()).unwrap().understand().unwrap() {
            TokenKind::Clevis(jwe) => jwe,
            other => panic!("{other:?}"),
        }
    }

    fn server_secret() -> Scalar {
        let bytes: Vec<u8> = (0..SERVER.len() / 2)
            .map(|at| u8::from_str_radix(&SERVER[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        Scalar::from_repr(FieldBytes::try_from(bytes.as_slice()).unwrap()).unwrap()
    }

    /// The answer of the server to a request.
    fn answer(request: &str) -> String {
        let request = parse_text(request.as_bytes()).unwrap();
        let point = point_of(&Node::root(&request)).unwrap_or_else(|error| panic!("{error:?}"));
        jwk_of(&(point * server_secret())).to_string()
    }

    #[test]
    fn passphrase_of_clevis_is_decrypted_with_the_answer_of_the_server() {
        let jwe = jwe_of(TOKEN);
        let exchange = TangExchange::new(&jwe).unwrap();
        assert_eq!(exchange.url(), "http://127.0.0.1:7511");
        assert_eq!(exchange.path(), "/rec/L0r11hM3gAf1oszx6Y1NxBpkbXA8gny62CFbh6mqB1U");
        let passphrase = exchange.open(answer(&exchange.request()).as_bytes()).unwrap();
        assert_eq!(passphrase.as_slice(), b"open sesame");
        // The server sees another point each time.
        assert_ne!(exchange.request(), TangExchange::new(&jwe).unwrap().request());
    }

    #[test]
    fn shared_point_and_its_key_are_not_left_on_the_stack() {
        const SEARCHED_BYTES: usize = 128 << 10;
        let jwe = jwe_of(TOKEN);
        let exchange = TangExchange::new(&jwe).unwrap();
        let answer = answer(&exchange.request());
        let ephemeral = point_of(&Node::root(&jwe.header["epk"])).unwrap_or_else(|_| panic!());
        let shared = (ephemeral * server_secret()).to_affine().x();
        let key = derived_key(&shared);
        let (opened, is_open) = mpsc::channel();
        let (searched, is_searched) = mpsc::channel();
        let stack = thread::scope(|scope| {
            let (exchange, answer) = (&exchange, answer.as_bytes());
            scope.spawn(move || {
                let top = 0_u8;
                exchange.open(answer).unwrap();
                opened.send(std::ptr::from_ref(&top) as usize).unwrap();
                is_searched.recv().unwrap();
            });
            let top = is_open.recv().unwrap();
            let mut stack = vec![0; SEARCHED_BYTES];
            let memory = File::open("/proc/self/mem").unwrap();
            memory.read_exact_at(&mut stack, (top - SEARCHED_BYTES) as u64).unwrap();
            searched.send(()).unwrap();
            stack
        });
        // Compilers move values in pieces.
        let limbs = limbs(&shared);
        for (secret, bytes) in
            [("limbs", &limbs[..]), ("point", &shared[2..66]), ("key", key.as_slice())]
        {
            for piece in bytes.chunks_exact(8) {
                let found = stack.windows(piece.len()).any(|window| window == piece);
                assert!(!found, "a part of the {secret} is on the stack");
            }
        }
    }

    /// A coordinate as the arithmetic of `p521` keeps it: nine numbers of 58 bits.
    fn limbs(coordinate: &FieldBytes) -> Vec<u8> {
        const LIMBS: usize = 9;
        const LIMB_BITS: usize = 58;
        let bit = |at: usize| {
            let byte = coordinate.iter().rev().nth(at / 8).copied().unwrap_or(0);
            u64::from(byte >> (at % 8) & 1)
        };
        let limb = |number: usize| -> u64 {
            (0..LIMB_BITS).map(|at| bit(number * LIMB_BITS + at) << at).sum()
        };
        (0..LIMBS).flat_map(|number| limb(number).to_ne_bytes()).collect()
    }

    #[test]
    fn answers_that_lie_are_refused() {
        let jwe = jwe_of(TOKEN);
        let exchange = TangExchange::new(&jwe).unwrap();
        let good: Value = serde_json::from_str(&answer(&exchange.request())).unwrap();
        let with = |key: &str, value: Value| {
            let mut answer = good.clone();
            answer[key] = value;
            answer.to_string()
        };
        let x = good["x"].as_str().unwrap();
        let other = TangExchange::new(&jwe).unwrap();
        for (lie, named) in [
            ("{".to_owned(), "no JSON"),
            ("[]".to_owned(), "must be an object"),
            ("{}".to_owned(), "kty"),
            (with("crv", json!("P-256")), "crv: only P-521"),
            (with("x", json!(7)), "must be a string"),
            (with("x", json!(&x[..80])), "66 bytes"),
            (with("y", json!(x)), "no point of the curve"),
            (with("x", json!(encoded(&[0xff; 66]))), "no point of the curve"),
            (answer(&other.request()), "does not decrypt"),
            (exchange.request(), "does not decrypt"),
            (jwk_of(&(exchange.server * **exchange.blinding)).to_string(), "no point of this"),
        ] {
            let error = exchange.open(lie.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{lie}: {error}");
        }
    }

    #[test]
    fn header_of_another_exchange_is_named() {
        let jwe = jwe_of(TOKEN);
        let changed = |pointer: &str, value: Value| {
            let mut jwe = jwe.clone();
            *jwe.header.pointer_mut(pointer).unwrap() = value;
            let error = TangExchange::new(&jwe).err().expect("it is refused");
            error.to_string()
        };
        for (pointer, value, named) in [
            ("/alg", json!("dir"), "alg: only ECDH-ES"),
            ("/enc", json!("A128GCM"), "enc: only A256GCM"),
            ("/kid", json!("x"), "kid: the keys that the server had advertised"),
            ("/epk/crv", json!("P-256"), "epk.crv: only P-521"),
            ("/epk/x", json!("AAAA"), "epk.x: it is no number of 66 bytes"),
            ("/clevis/tang/url", json!(["a"]), "url: it is an array"),
            ("/clevis/tang/url", json!("http://a\r\nb"), "url: it is not printable"),
            ("/clevis/tang/adv/keys", json!({}), "keys: it is an object"),
        ] {
            let error = changed(pointer, value);
            assert!(error.contains(named), "{pointer}: {error}");
        }
    }
}
