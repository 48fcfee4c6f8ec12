//! Bytes: send and receive in all sizes, read and write, sendfile, splice and their kin.

use crate::cases;
use crate::sys::pipe;
use crate::trace::pattern;
use libc::c_int;
use std::ptr::null_mut;

fn file(bytes: &[u8]) -> c_int {
    let fd = c!(memfd_create(c"f".as_ptr(), 0)) as c_int;
    c!(pwrite(fd, bytes.as_ptr().cast(), bytes.len(), 0));
    fd
}

cases! {
    fn hello(t) {
        let (c, s) = t.pair();
        t.send(c, b"hello", 0);
        t.until_bytes(s, 5);
        t.recv(s, 100, 0);
        t.send(s, b"world!", 0);
        t.until_bytes(c, 6);
        t.recv(c, 3, 0);
        t.recv(c, 100, 0);
        t.nb(c);
        t.recv(c, 100, 0);
    }
    fn stream_has_no_borders(t) {
        let (c, s) = t.pair();
        for part in [&b"one"[..], b"two", b"", b"three"] {
            t.send(c, part, 0);
        }
        t.until_bytes(s, 11);
        t.recv(s, 4, 0);
        t.recv(s, 4, 0);
        t.recv(s, 100, 0);
    }
    fn read_write(t) {
        let (c, s) = t.pair();
        t.write(c, b"bytes");
        t.until_bytes(s, 5);
        t.read(s, 2);
        t.read(s, 0);
        t.read(s, 9);
        t.write(s, b"");
        t.nb(c);
        t.read(c, 3);
    }
    fn large(t) {
        let (c, s) = t.pair();
        let data = pattern(3_000_000);
        std::thread::scope(|scope| {
            scope.spawn(|| t.drain(s, 3_000_000));
            let sent = c!(send(c, data.as_ptr().cast(), data.len(), 0));
            assert_eq!(sent, 3_000_000, "a blocking send sends all");
        });
        t.nb(s);
        t.recv(s, 10, 0);
    }
    fn large_both_ways(t) {
        let (c, s) = t.pair();
        let data = pattern(1_000_000);
        let send_all = |fd| {
            let n = c!(send(fd, data.as_ptr().cast(), data.len(), 0));
            assert_eq!(n, 1_000_000, "a blocking send sends all");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(c));
            scope.spawn(|| send_all(s));
            t.drain(s, 1_000_000);
            t.drain(c, 1_000_000);
        });
    }
    fn fill_until_full(t) {
        let (c, s) = t.pair();
        t.nb(c);
        let data = pattern(65_536);
        let mut total = 0u64;
        loop {
            let n = c!(send(c, data.as_ptr().cast(), data.len(), 0));
            if n < 0 {
                t.r("full", n);
                break;
            }
            total += n as u64;
            assert!(total < 1 << 30, "a stream takes no end of bytes");
        }
        t.say(format!("some={}", total > 65_536));
        // What is under way may make room, for whole buffers: full is full only once nothing moves.
        t.until_true("full", || {
            let n = c!(send(c, data.as_ptr().cast(), data.len(), 0));
            total += n.max(0) as u64;
            n < 0
        });
        let mut left = total;
        let mut buf = vec![0u8; 1 << 20];
        while left > 0 {
            match c!(recv(s, buf.as_mut_ptr().cast(), buf.len().min(left as usize), 0)) {
                n if n > 0 => left -= n as u64,
                n => { t.r("recv", n); break; }
            }
        }
        t.until(c, libc::POLLOUT);
        t.send(c, b"again", 0);
    }
    fn full_is_not_writable(t) {
        let (c, s) = t.pair();
        t.nb(c);
        let data = pattern(65_536);
        t.until_true("full", || {
            while c!(send(c, data.as_ptr().cast(), data.len(), 0)) > 0 {}
            std::thread::sleep(std::time::Duration::from_millis(20));
            c!(send(c, data.as_ptr().cast(), data.len(), 0)) < 0
        });
        t.levels(c);
        t.select(c);
        t.epoll(c, 0x5);
        t.levels(s);
    }
    fn send_nothing(t) {
        let (c, s) = t.pair();
        t.send(c, b"", 0);
        t.write(c, b"");
        t.nb(s);
        t.recv(s, 4, 0);
        t.levels(s);
    }
    fn recv_nothing(t) {
        let (c, s) = t.pair();
        t.send(c, b"abc", 0);
        t.until_bytes(s, 3);
        t.recv(s, 0, 0);
        t.recv(s, 9, 0);
        t.nb(s);
        t.recv(s, 0, 0);
        t.read(s, 0);
    }
    fn offsets_are_refused(t) {
        let (c, s) = t.pair();
        t.send(s, b"abc", 0);
        let mut buf = [0u8; 4];
        t.r("pread", c!(pread(c, buf.as_mut_ptr().cast(), 4, 0)));
        t.r("pwrite", c!(pwrite(c, b"abc".as_ptr().cast(), 3, 0)));
        t.r("pread64", c!(pread64(c, buf.as_mut_ptr().cast(), 4, 0)));
        t.r("lseek", c!(lseek(c, 0, libc::SEEK_CUR)));
        let iovs = [crate::calls::iov_mut(&mut buf)];
        t.r("preadv", c!(preadv(c, iovs.as_ptr(), 1, 0)));
        t.r("pwritev", c!(pwritev(c, iovs.as_ptr(), 1, 0)));
        t.r("ftruncate", c!(ftruncate(c, 0)));
        t.r("fallocate", c!(fallocate(c, 0, 0, 10)));
        t.until_bytes(c, 3);
        t.recv(c, 9, 0);
    }
    fn sync_is_refused(t) {
        let (c, _s) = t.pair();
        t.r("fsync", c!(fsync(c)));
        t.r("fdatasync", c!(fdatasync(c)));
        t.r("posix_fadvise", c!(posix_fadvise(c, 0, 0, 0)));
        t.r("flock", c!(flock(c, libc::LOCK_EX | libc::LOCK_NB)));
    }
    fn mmap_to_receive(t) {
        let (c, _s) = t.pair();
        let at = c!(mmap(null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, c, 0));
        t.say(format!("{}", at != libc::MAP_FAILED as usize as i64));
    }
    fn fstat_says_socket(t) {
        let (c, _s) = t.pair();
        let mut st: libc::stat = crate::sys::zeroed();
        t.r("fstat", c!(fstat(c, &raw mut st)));
        t.say(format!("{:#o} {} {}", st.st_mode, st.st_size, st.st_nlink));
        let mut link = [0u8; 64];
        let path = format!("/proc/self/fd/{c}\0");
        let n = c!(readlink(path.as_ptr().cast(), link.as_mut_ptr().cast(), 64));
        t.say(format!("{:?}", String::from_utf8_lossy(&link[..n.clamp(0, 8) as usize])));
    }
    fn sendfile_whole(t) {
        let (c, s) = t.pair();
        let f = file(&pattern(200_000));
        std::thread::scope(|scope| {
            scope.spawn(|| t.drain(s, 200_000));
            let mut at: libc::off_t = 0;
            while at < 200_000 && c!(sendfile(c, f, &raw mut at, 200_000)) > 0 {}
        });
    }
    fn sendfile_offsets(t) {
        let (c, s) = t.pair();
        let f = file(b"0123456789");
        let mut at: libc::off_t = 4;
        t.r("sendfile", c!(sendfile(c, f, &raw mut at, 3)));
        t.say(format!("at={at} position={}", c!(lseek(f, 0, libc::SEEK_CUR))));
        t.r("sendfile", c!(sendfile(c, f, null_mut(), 4)));
        t.say(format!("position={}", c!(lseek(f, 0, libc::SEEK_CUR))));
        t.r("sendfile", c!(sendfile(c, f, null_mut(), 100)));
        t.r("sendfile", c!(sendfile(c, f, null_mut(), 100)));
        t.r("nothing", c!(sendfile(c, f, null_mut(), 0)));
        t.until_bytes(s, 13);
        t.recv(s, 100, 0);
    }
    fn sendfile_wrong(t) {
        let (c, s) = t.pair();
        let f = file(b"0123456789");
        t.r("from-socket", c!(sendfile(f, s, null_mut(), 3)));
        t.r("socket-socket", c!(sendfile(c, s, null_mut(), 3)));
        t.r("bad", c!(sendfile(c, 499, null_mut(), 3)));
        let (r, _w) = pipe();
        t.r("pipe", c!(sendfile(c, r, null_mut(), 0)));
        let mut at: libc::off_t = -1;
        t.r("negative", c!(sendfile(c, f, &raw mut at, 3)));
        let d = c!(open(c"/".as_ptr(), libc::O_RDONLY)) as c_int;
        t.r("directory", c!(sendfile(c, d, null_mut(), 3)));
        let w = c!(open(c"/dev/null".as_ptr(), libc::O_WRONLY)) as c_int;
        t.r("write-only", c!(sendfile(c, w, null_mut(), 3)));
    }
    fn sendfile_nonblocking(t) {
        let (c, s) = t.pair();
        t.nb(c);
        let f = file(&pattern(100_000));
        let mut at: libc::off_t = 0;
        let n = c!(sendfile(c, f, &raw mut at, 5_000));
        t.say(format!("{n} {at}"));
        t.until_bytes(s, 5_000);
        t.drain(s, 5_000);
    }
    fn splice_in(t) {
        let (c, s) = t.pair();
        let (r, w) = pipe();
        t.write(w, b"spliced");
        t.r("splice", c!(splice(r, null_mut(), c, null_mut(), 7, 0)));
        t.until_bytes(s, 1);
        t.recv(s, 100, libc::MSG_DONTWAIT);
    }
    fn splice_out(t) {
        let (c, s) = t.pair();
        t.nb(c);
        let (r, w) = pipe();
        t.send(s, b"spliced", 0);
        t.until_bytes(c, 7);
        t.r("splice", c!(splice(c, null_mut(), w, null_mut(), 4, 0)));
        t.nb(r);
        t.read(r, 100);
        t.recv(c, 100, 0);
        t.r("empty", c!(splice(c, null_mut(), w, null_mut(), 4, libc::SPLICE_F_NONBLOCK)));
        c!(close(s));
        t.until(c, libc::POLLRDHUP);
        t.r("end", c!(splice(c, null_mut(), w, null_mut(), 4, 0)));
    }
    fn splice_wrong(t) {
        let (c, s) = t.pair();
        t.r("sockets", c!(splice(c, null_mut(), s, null_mut(), 4, 0)));
        let (r, w) = pipe();
        let mut at: i64 = 0;
        t.r("offset", c!(splice(c, &raw mut at, w, null_mut(), 4, 0)));
        t.r("tee", c!(tee(c, w, 4, 0)));
        t.r("tee", c!(tee(r, c, 4, 0)));
        t.r("copy", c!(copy_file_range(c, null_mut(), w, null_mut(), 4, 0)));
        t.r("vmsplice", c!(vmsplice(c, std::ptr::null(), 0, 0)));
    }
    fn stdio(t) {
        let (c, s) = t.pair();
        let f = c!(fdopen(c, c"r+".as_ptr())) as usize as *mut libc::FILE;
        t.r("fputs", c!(fputs(c"line\n".as_ptr(), f)));
        t.r("fflush", c!(fflush(f)));
        t.until_bytes(s, 5);
        t.recv(s, 100, libc::MSG_DONTWAIT);
        t.send(s, b"answer\nmore", 0);
        let mut buf = [0u8; 32];
        let got = c!(fgets(buf.as_mut_ptr().cast(), 32, f));
        t.say(format!("{} {:?}", got != 0, String::from_utf8_lossy(&buf[..7])));
        t.r("fclose", c!(fclose(f)));
        t.until(s, libc::POLLRDHUP);
    }
    fn dprintf(t) {
        let (c, s) = t.pair();
        t.r("dprintf", c!(dprintf(c, c"%d-%s".as_ptr(), 42 as c_int, c"x".as_ptr())));
        t.until_bytes(s, 1);
        t.recv(s, 100, libc::MSG_DONTWAIT);
    }
    fn queues(t) {
        let (c, s) = t.pair();
        t.ioctl("in", s, libc::FIONREAD);
        t.send(c, b"0123456789", 0);
        t.until_bytes(s, 10);
        t.ioctl("in", s, libc::FIONREAD);
        t.recv(s, 4, libc::MSG_PEEK);
        t.ioctl("in", s, libc::FIONREAD);
        t.recv(s, 4, 0);
        t.ioctl("in", s, libc::FIONREAD);
        t.until_true("acknowledged", || { let mut q = 1; c!(ioctl(c, libc::TIOCOUTQ, &raw mut q)); q == 0 });
        t.ioctl("unsent", c, 0x894B);
    }
    fn many_small(t) {
        let (c, s) = t.pair();
        let data = pattern(2_000);
        for b in &data {
            c!(send(c, (&raw const *b).cast(), 1, 0));
        }
        t.drain(s, 2_000);
    }
    fn many_small_nodelay(t) {
        let (c, s) = t.pair();
        t.set("nodelay", c, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
        let data = pattern(2_000);
        for b in &data {
            c!(send(c, (&raw const *b).cast(), 1, 0));
        }
        t.drain(s, 2_000);
    }
    fn ping_pong(t) {
        let (c, s) = t.pair();
        let mut b = [0u8; 8];
        for n in 0..300u64 {
            c!(send(c, n.to_ne_bytes().as_ptr().cast(), 8, 0));
            c!(recv(s, b.as_mut_ptr().cast(), 8, libc::MSG_WAITALL));
            c!(send(s, b.as_ptr().cast(), 8, 0));
            c!(recv(c, b.as_mut_ptr().cast(), 8, libc::MSG_WAITALL));
        }
        t.say(format!("{}", u64::from_ne_bytes(b)));
    }
}
