//! Cipher strings: from a header, a dm table or the command line.
#![no_main]

use blockyard_crypt::cipher::CipherSpec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(spec) = CipherSpec::parse(text) {
        assert_eq!(spec.as_str(), text);
        let again =
            CipherSpec::parse(spec.as_str()).expect("what was understood once is understood");
        assert_eq!(again, spec);
    }
});
