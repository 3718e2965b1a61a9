# shellcheck shell=sh disable=SC1091
. "$(dirname "$0")/lib.sh"
cd "$(mktemp -d)" || exit 1

cat >main.rs <<'END'
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{mpsc, Arc, Mutex};
use std::{fs, panic, thread};

fn main() {
    let total = Arc::new(Mutex::new(0u64));
    let all: Vec<_> = (0..64u64).map(|n| {
        let total = total.clone();
        thread::spawn(move || { for _ in 0..100 { *total.lock().unwrap() += n; } })
    }).collect();
    for t in all { t.join().unwrap(); }
    println!("threads {}", total.lock().unwrap());

    let (tx, rx) = mpsc::channel();
    for n in 0..10 { let tx = tx.clone(); thread::spawn(move || tx.send(n).unwrap()); }
    drop(tx);
    println!("channel {}", rx.iter().sum::<i32>());

    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = l.local_addr().unwrap();
    thread::spawn(move || l.accept().unwrap().0.write_all(b"hello").unwrap());
    let mut s = String::new();
    TcpStream::connect(a).unwrap().read_to_string(&mut s).unwrap();
    println!("socket {}", s);

    fs::write("f", vec![7u8; 1 << 20]).unwrap();
    println!("file {}", fs::read("f").unwrap().iter().map(|&b| b as u64).sum::<u64>());
    println!("process {}", Command::new("sh").args(["-c", "exit 3"]).status().unwrap().code().unwrap());
    panic::set_hook(Box::new(|_| {}));
    println!("unwinding {}", panic::catch_unwind(|| { let v: Vec<i32> = vec![]; v[std::env::args().count()] }).is_err());
}
END
cat >overflow.rs <<'END'
fn deep(n: u64) -> u64 { let a = [n; 512]; if n == 0 { 0 } else { let s = unsafe { std::ptr::read_volatile(&a[7]) }; s + deep(n - 1) } }
fn main() { println!("{}", deep(u64::MAX)); }
END
check 'compile' rustc -O main.rs
for line in 'threads 201600' 'channel 45' 'socket hello' 'file 7340032' 'process 3' 'unwinding true'; do
    gives "${line% *}" "^$line$" ./main
done
check 'compile for a stack overflow' rustc overflow.rs
gives 'stack overflow is told' 'has overflowed its stack' ./overflow
check 'compile with tests' rustc --test -o tests main.rs
check 'run them' ./tests
