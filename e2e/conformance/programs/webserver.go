// Answers at port 80 with the files of a folder and nothing else: a file that was moved away is
// 404, which the tests of StatefulSets rely on. It ends on SIGTERM at once, as the real ones do
// and busybox's httpd as process 1 of a container does not.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	root := os.Args[1]
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		<-ended
		os.Exit(0)
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path
		if name == "/" {
			name = "/index.html"
		}
		content, err := os.ReadFile(filepath.Join(root, filepath.Clean(name)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Write(content)
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(":80", nil))
	os.Exit(1)
}
