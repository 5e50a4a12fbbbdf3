/* The first process of every pod's sandbox: it holds the namespaces open and reaps orphans. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number) {
    (void)signal_number;
    _exit(0);
}

static void reap(int signal_number) {
    (void)signal_number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGINT, leave);
    signal(SIGTERM, leave);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
