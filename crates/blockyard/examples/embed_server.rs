//! Serves a LUKS volume over NBD from within a program, until Enter is pressed:
//! `cargo run --example embed_server -- home.img key.bin home.sock`

use blockyard::{Key, Server, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [image, key_file, socket] = &words[..] else {
        return Err("usage: IMAGE KEY_FILE SOCKET".into());
    };
    let volume = Volume::options().key(Key::file(key_file)?).open(image)?;
    let server = Server::new().export("", &volume).unix(socket).start()?;
    println!("serving {} bytes as nbd+unix:///?socket={socket}; Enter stops", volume.len());
    std::io::stdin().read_line(&mut String::new())?;
    server.stop()?;
    Ok(())
}
