//! Packing and reading back, with this test's own program as front and payload: it is linked as ours are.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use saggar_payload::{Damaged, Payload, TakeOverError, pack};

const TRAILER_LEN: usize = 40;

fn own_program() -> Vec<u8> {
    std::fs::read("/proc/self/exe").expect("it runs")
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("saggar-payload-{}-{name}", std::process::id()));
        Self(path)
    }

    fn read(&self, bytes: &[u8]) -> Result<Payload, Damaged> {
        std::fs::write(&self.0, bytes).expect("there is room");
        Payload::carried_by(File::open(&self.0).expect("just written"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been written.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn what_was_packed_is_found_and_packing_again_replaces_it() {
    let scratch = Scratch::new("again");
    let once = pack(b"front", &own_program()).unwrap();
    scratch.read(&once).unwrap();
    assert_eq!(pack(&once[..], &own_program()).unwrap(), once);
}

#[test]
fn a_file_that_was_cut_anywhere_is_refused() {
    let scratch = Scratch::new("cut");
    let packed = pack(&own_program(), &own_program()).unwrap();
    let length = packed.len();
    for kept in [0, 1, TRAILER_LEN, length / 4, length / 2, length - TRAILER_LEN, length - 1] {
        assert!(matches!(scratch.read(&packed[..kept]), Err(Damaged::NoTrailer)), "{kept} of {length}");
    }
    // Its end is there, and a piece of the middle isn't.
    let (first, last) = packed.split_at(length / 2);
    assert!(matches!(scratch.read(&[&first[..length / 3], last].concat()), Err(Damaged::Length)));
}

#[test]
fn a_changed_byte_of_the_trailer_or_of_the_headers_is_noticed() {
    let scratch = Scratch::new("changed");
    let packed = pack(b"front", &own_program()).unwrap();
    let begin = 64 << 10;
    let trailer = packed.len() - TRAILER_LEN..packed.len();
    for place in trailer.chain(begin..begin + 64).chain([begin + 4095]) {
        let mut changed = packed.clone();
        changed[place] ^= 1;
        assert!(scratch.read(&changed).is_err(), "byte {place} of {}", packed.len());
    }
}

#[test]
fn headers_that_contradict_themselves_are_refused_and_none_makes_the_reader_panic() {
    let program = own_program();
    let scratch = Scratch::new("headers");
    std::fs::write(&scratch.0, &program).unwrap();
    let file = File::options().read(true).write(true).open(&scratch.0).unwrap();
    for place in 0..1024 {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            file.write_all_at(&[value], place).unwrap();
            // Some bytes mean nothing to a loader.
            let _ = Payload::whole(file.try_clone().unwrap());
        }
        file.write_all_at(&[program[place as usize]], place).unwrap();
    }
    Payload::whole(file).unwrap();
    let refused = |place: usize, value: u8| {
        let mut changed = program.clone();
        changed[place] = value;
        pack(b"front", &changed).unwrap_err().to_string()
    };
    let not_ours = "the program in it is not an executable of this architecture";
    let contradiction = "the headers of the program in it contradict each other";
    assert_eq!(refused(0, 0), not_ours);
    assert_eq!(refused(18, 3), not_ours);
    assert_eq!(refused(16, 2), "the program in it is not static and position-independent");
    for place in [31, 39, 54, 57] {
        assert_eq!(refused(place, 0x7f), contradiction, "byte {place}");
    }
    assert_eq!(pack(b"front", b"\x7fELF").unwrap_err().to_string(), "the program in it is too short");
    assert_eq!(pack(b"front", &program[..8192]).unwrap_err().to_string(), contradiction);
}

#[test]
fn a_process_with_other_threads_is_not_given_away() {
    let payload = Payload::whole(File::open("/proc/self/exe").unwrap()).unwrap();
    assert!(matches!(payload.take_over(), Err(TakeOverError::Threads)));
}
