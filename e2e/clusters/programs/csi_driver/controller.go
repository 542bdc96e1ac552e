package main

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func (d *driver) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, each := range types {
		rpc := &csi.ControllerServiceCapability_RPC{Type: each}
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc},
		})
	}
	return response, nil
}

func (d *driver) CreateVolume(
	_ context.Context, request *csi.CreateVolumeRequest,
) (*csi.CreateVolumeResponse, error) {
	for _, each := range request.VolumeCapabilities {
		if each.GetBlock() != nil {
			return nil, status.Error(codes.InvalidArgument, "no block devices")
		}
	}
	made, exists := d.volumes.find(request.Name)
	if !exists {
		from, err := d.source(request.VolumeContentSource)
		if err != nil {
			return nil, err
		}
		made = record{Size: request.CapacityRange.GetRequiredBytes(), Created: time.Now()}
		if err := d.volumes.create(request.Name, from, made); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: request.Name, CapacityBytes: made.Size, ContentSource: request.VolumeContentSource,
	}}, nil
}

// source returns the directory to copy, or nothing for an empty volume.
func (d *driver) source(content *csi.VolumeContentSource) (string, error) {
	from, id := d.volumes, content.GetVolume().GetVolumeId()
	if content.GetSnapshot() != nil {
		from, id = d.snapshots, content.GetSnapshot().GetSnapshotId()
	}
	if content == nil {
		return "", nil
	}
	if _, exists := from.find(id); !exists {
		return "", status.Errorf(codes.NotFound, "the source %s does not exist", id)
	}
	return from.path(id), nil
}

func (d *driver) DeleteVolume(
	_ context.Context, request *csi.DeleteVolumeRequest,
) (*csi.DeleteVolumeResponse, error) {
	if node := d.attachedTo(request.VolumeId); node != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "it is attached to %s", node)
	}
	return &csi.DeleteVolumeResponse{}, d.volumes.remove(request.VolumeId)
}

func (d *driver) ValidateVolumeCapabilities(
	_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeCapabilities: request.VolumeCapabilities,
		},
	}, nil
}

// attachedTo returns the node to which a volume is attached, or nothing.
func (d *driver) attachedTo(volume string) string {
	node, _ := os.ReadFile(filepath.Join(d.attached, filepath.Base(volume)))
	return string(node)
}

func (d *driver) ControllerPublishVolume(
	_ context.Context, request *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	if _, exists := d.volumes.find(request.VolumeId); !exists {
		return nil, status.Error(codes.NotFound, "the volume does not exist")
	}
	if node := d.attachedTo(request.VolumeId); node != "" && node != request.NodeId {
		return nil, status.Errorf(codes.FailedPrecondition, "it is attached to %s", node)
	}
	path := filepath.Join(d.attached, filepath.Base(request.VolumeId))
	return &csi.ControllerPublishVolumeResponse{}, os.WriteFile(path, []byte(request.NodeId), 0o644)
}

func (d *driver) ControllerUnpublishVolume(
	_ context.Context, request *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	path := filepath.Join(d.attached, filepath.Base(request.VolumeId))
	return &csi.ControllerUnpublishVolumeResponse{}, os.RemoveAll(path)
}

func (d *driver) CreateSnapshot(
	_ context.Context, request *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	if _, exists := d.snapshots.find(request.Name); !exists {
		volume, exists := d.volumes.find(request.SourceVolumeId)
		if !exists {
			return nil, status.Error(codes.NotFound, "the volume does not exist")
		}
		made := record{Size: volume.Size, Created: time.Now(), Source: request.SourceVolumeId}
		from := d.volumes.path(request.SourceVolumeId)
		if err := d.snapshots.create(request.Name, from, made); err != nil {
			return nil, err
		}
	}
	return &csi.CreateSnapshotResponse{Snapshot: d.snapshot(request.Name)}, nil
}

func (d *driver) snapshot(id string) *csi.Snapshot {
	found, exists := d.snapshots.find(id)
	if !exists {
		return nil
	}
	return &csi.Snapshot{
		SnapshotId: id, SourceVolumeId: found.Source, SizeBytes: found.Size,
		CreationTime: timestamppb.New(found.Created), ReadyToUse: true,
	}
}

func (d *driver) DeleteSnapshot(
	_ context.Context, request *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	return &csi.DeleteSnapshotResponse{}, d.snapshots.remove(request.SnapshotId)
}

// ListSnapshots finds one snapshot: the sidecar asks for no others.
func (d *driver) ListSnapshots(
	_ context.Context, request *csi.ListSnapshotsRequest,
) (*csi.ListSnapshotsResponse, error) {
	response := &csi.ListSnapshotsResponse{}
	if found := d.snapshot(request.SnapshotId); found != nil {
		response.Entries = []*csi.ListSnapshotsResponse_Entry{{Snapshot: found}}
	}
	return response, nil
}
