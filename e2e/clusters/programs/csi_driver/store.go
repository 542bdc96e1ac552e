package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// store is a folder of directories. Each has a record beside it, which is written last: a directory
// without one is incomplete.
type store struct{ folder string }

type record struct {
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	// Source is the volume of a snapshot.
	Source string `json:"source"`
}

func (s store) path(id string) string { return filepath.Join(s.folder, id) }

func (s store) find(id string) (record, bool) {
	var found record
	content, err := os.ReadFile(s.path(id) + ".json")
	if id == "" || id != filepath.Base(id) || err != nil {
		return found, false
	}
	return found, json.Unmarshal(content, &found) == nil
}

// create makes a directory that every user may write to, with a copy of `from` unless that is empty.
func (s store) create(id, from string, made record) error {
	if id != filepath.Base(id) {
		return status.Errorf(codes.InvalidArgument, "%q is no name", id)
	}
	path := s.path(id)
	_ = os.RemoveAll(path)
	if err := os.Mkdir(path, 0o777); err != nil {
		return err
	}
	if from != "" {
		if output, err := exec.Command("cp", "-a", from+"/.", path).CombinedOutput(); err != nil {
			return status.Errorf(codes.Internal, "%s: %v", output, err)
		}
	}
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	content, _ := json.Marshal(made)
	return os.WriteFile(path+".json", content, 0o644)
}

func (s store) remove(id string) error {
	if id == "" || id != filepath.Base(id) {
		return nil
	}
	if err := os.RemoveAll(s.path(id) + ".json"); err != nil {
		return err
	}
	return os.RemoveAll(s.path(id))
}
