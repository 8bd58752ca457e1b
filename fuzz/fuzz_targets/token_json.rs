//! The JSON of a token, what it says, and the exchange with a tang server that it may ask for. A
//! second half after a NUL is the answer of that server.
#![no_main]

use blockyard_crypt::luks2::{TangExchange, Token, TokenKind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let at = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let answer = input.get(at + 1..).unwrap_or_default();
    let Ok(token) = Token::parse(&input[..at]) else { return };
    let again = Token::parse(token.to_string().as_bytes()).expect("its own text");
    assert_eq!(again.kind(), token.kind());
    let _ = token.keyslots();
    if let Ok(TokenKind::Clevis(jwe)) = token.understand() {
        let _ = jwe.compact();
        let _ = jwe.check_known_pins();
        if let Ok(exchange) = TangExchange::new(&jwe) {
            let _ = exchange.request();
            let _ = exchange.open(answer);
        }
    }
});
